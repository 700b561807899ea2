"""Rows of the table of loops and settings: kept in a file as they come, and summed up."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

# What needs no look: the tuned run does what the plain one does, or what it says and is meant to.
UNREMARKABLE = frozenset({"same", "left out", "by design", "skipped"})
_MOST_DETAILS, _MOST_CHARACTERS = 6, 400


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one loop under some settings."""

    loop: str
    case: str
    direction: str
    outcome: str
    details: tuple[str, ...]
    seconds: float
    apart: Mapping[str, float] = field(default_factory=dict)

    @property
    def case_and_direction(self) -> str:
        """The case; with the direction of a loop that stops and goes on."""
        return self.case if self.direction in ("", "tuned") else f"{self.case} ({self.direction})"


class Summary:
    """Rows so far. With a folder, they are written to ``rows.jsonl`` as they come, and ``loops.md`` at the end."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self.rows: list[Row] = []
        if folder:
            folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._folder:
            (self._folder / "loops.md").write_text(document(self.rows), encoding="utf-8")

    def add(self, row: Row) -> None:
        """Keep a row."""
        self.rows.append(row)
        if self._folder:
            details = [text[:_MOST_CHARACTERS] for text in row.details[:_MOST_DETAILS]]
            with (self._folder / "rows.jsonl").open("a", encoding="utf-8") as file:
                print(json.dumps({**asdict(row), "details": details, "apart": dict(row.apart)}), file=file)

    def counts(self) -> str:
        """How many rows came out how."""
        return _counts(self.rows)


def rows_in(path: Path) -> list[Row]:
    """The rows of a ``rows.jsonl``."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Row(**{**told, "details": tuple(told["details"])}) for told in map(json.loads, lines)]


def document(rows: list[Row]) -> str:
    """The counts of each loop as a table, and every row that needs a look."""
    outcomes = sorted({row.outcome for row in rows}, key=lambda outcome: (outcome not in UNREMARKABLE, outcome))
    lines = [f"| loop | {' | '.join(outcomes)} | seconds |", f"|{' --- |' * (len(outcomes) + 2)}"]
    for loop in dict.fromkeys(row.loop for row in rows):
        mine = [row for row in rows if row.loop == loop]
        found = Counter(row.outcome for row in mine)
        cells = [str(found[outcome] or "") for outcome in outcomes]
        lines.append(f"| {loop} | {' | '.join(cells)} | {sum(row.seconds for row in mine):.1f} |")
    lines += ["", f"{_counts(rows)}.", ""]
    for row in rows:
        if row.outcome not in UNREMARKABLE:
            lines.append(f"- {row.loop}, {row.case_and_direction}: {row.outcome}")
            lines += [f"  - {text[:_MOST_CHARACTERS]}" for text in row.details[:_MOST_DETAILS]]
    return "\n".join(lines) + "\n"


def _counts(rows: list[Row]) -> str:
    found = Counter(row.outcome for row in rows)
    return f"{len(rows)} rows: " + ", ".join(f"{count} {outcome}" for outcome, count in found.most_common())
