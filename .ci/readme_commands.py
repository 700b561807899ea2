"""Prints the commands of the first shell block under a heading of README, one a line.

python .ci/readme_commands.py "Try it"
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def commands_under(heading: str, text: str) -> list[str]:
    """Return the commands, those that ``&&`` joins one by one; exits with a message where there are none."""
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    block = section and re.search(r"^```bash\n(.*?)^```$", section[1], re.M | re.S)
    if not block:
        sys.exit(f"README has no shell block under the heading {heading!r}")
    lines = (line.partition(" #")[0] for line in block[1].splitlines())
    return [command.strip() for line in lines for command in line.split(" && ")]


if __name__ == "__main__":
    print(*commands_under(sys.argv[1], README.read_text(encoding="utf-8")), sep="\n")
