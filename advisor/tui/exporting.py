"""What the export view needs of an exporter. The functions that write files are elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from advisor.experiment.state import SessionState
from advisor.experiment.verification import Exported


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """A file that can be written. ``language`` colours the preview: ``yaml``, ``python``, ``diff``, ``markdown``, …"""

    id: str
    title: str
    default_name: str
    language: str = "text"
    description: str = ""


class Exporter(Protocol):
    """Writes what a session found. Every method may raise ``AdvisorError`` with a message and a hint."""

    def formats(self) -> Sequence[ExportFormat]:
        """The formats on offer, in the order in which they are shown."""

    def preview(self, format_id: str, state: SessionState) -> str:
        """The text of the file; for the patched config a unified diff against the user's file."""

    def save(self, format_id: str, path: Path, state: SessionState) -> Path:
        """Write the file atomically and return where it is."""

    def to_verify(self, format_id: str, path: Path, state: SessionState) -> Exported | None:
        """What can be verified of a file that was saved; None where nothing can."""
