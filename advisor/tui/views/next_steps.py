"""The use of an exported file, in three lines with its real name. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from textual.content import Content

from advisor.records import Verification
from advisor.report.figures import verified_words


def next_steps(name: str, after: Sequence[str], verification: Verification | None) -> Content:
    """Return the lines for a file: what writes it or what verifying it found, and the format's own lines after that."""
    lines = (Content(f"{number}  {line}") for number, line in enumerate(after, start=2))
    return Content("\n").join([_written(name, verification), *lines])


def _written(name: str, verification: Verification | None) -> Content:
    if verification and Path(verification.path).name == Path(name).name:
        sign, style = ("!", "$warning") if verification.problem else ("✓", "$success")
        return Content.assemble((f"{sign} {verified_words(verification)}", style))
    return Content.assemble(("1  s", "bold $accent"), f" writes {name}")
