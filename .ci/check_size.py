"""Checks that no room of this checkout has more lines than pyproject.toml allows, in its table ``[tool.house]``.

A room is a folder or a file of ``advisor/``, or one of the sums. Lines are those of the tracked Python files. The
figures are lowered when a room becomes smaller, and never raised.

python .ci/check_size.py
"""

import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRODUCT = "advisor and recipes"


def lines_by_room() -> Counter[str]:
    """The number of lines in each room, and in the sums."""
    git = shutil.which("git") or "git"
    listed = subprocess.check_output([git, "ls-files", "-z", "*.py"], cwd=ROOT, text=True)  # noqa: S603 - of this checkout
    counted: Counter[str] = Counter()
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_file():  # one that is deleted and not yet committed is still listed
            lines = path.read_bytes().count(b"\n")
            top, *below = Path(name).parts
            counted[f"{top}/{below[0]}" if top == "advisor" and below[1:] else top] += lines
            if top in ("advisor", "recipes"):
                counted[PRODUCT] += lines
    return counted


def main() -> int:
    """Print each room with its lines and its limit; the exit code is 1 when one has too many, or no limit."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        limits: dict[str, int] = tomllib.load(file)["tool"]["house"]
    counted, failed = lines_by_room(), False
    for room in sorted(limits.keys() | {room for room in counted if room.startswith("advisor/")}):
        lines, limit = counted[room], limits.get(room)
        too_many = limit is None or lines > limit
        failed |= too_many
        said = "has no limit" if limit is None else f"of {limit:>6,}{'  too many' if too_many else ''}"
        print(f"{room:<24}{lines:>7,} {said}")
    if failed:
        print("Make the room smaller: pyproject.toml, [tool.house], is never raised.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
