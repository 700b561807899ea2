"""The export view's interface to an exporter. The functions that write files are elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from advisor.experiment.state import SessionState
from advisor.export.format import Offer
from advisor.records import Exported


class Exporter(Protocol):
    """Writes what a session found. Every method may raise ``AdvisorError`` with a message and a hint."""

    def formats(self) -> Sequence[Offer]:
        """The formats on offer, in the order in which they are shown."""

    def preview(self, format_id: str, state: SessionState) -> str:
        """The text of the file; for the patched config a unified diff against the user's file."""

    def save(self, format_id: str, path: Path, state: SessionState) -> Path:
        """Write the file atomically and return where it is."""

    def next_steps(self, format_id: str, name: str, state: SessionState) -> Sequence[str]:
        """Lines that say what to do with a file of this name."""

    def to_verify(self, format_id: str, path: Path, state: SessionState) -> Exported | None:
        """The settings of a saved file that can be verified; None where none can."""
