"""Checks that the wheel in a folder holds every module, recipe and data file of this checkout, and nothing else.

python .ci/check_wheel.py dist
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
SUFFIXES = (".bash", ".fish", ".html", ".py", ".tcss", ".toml", ".txt", ".typed", ".yaml", ".zsh")
# Folder in the checkout, folder in the wheel.
PACKAGES = (("advisor", "advisor"), ("recipes", "advisor/recipes"))


def expected_files() -> set[str]:
    """What the wheel should hold, as paths in it."""
    return {
        str(PurePosixPath(installed, path.relative_to(ROOT / folder).as_posix()))
        for folder, installed in PACKAGES
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES
    }


def held_files(wheel: Path) -> set[str]:
    """What a wheel holds, without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def main() -> int:
    """Compare, and say what differs; the exit code is 1 when something does."""
    wheels = list(Path(sys.argv[1]).glob("*.whl"))
    if len(wheels) != 1:
        print(f"{sys.argv[1]} holds {len(wheels)} wheels, not one")
        return 1
    expected, held = expected_files(), held_files(wheels[0])
    for name in sorted(expected - held):
        print(f"missing in the wheel: {name}")
    for name in sorted(held - expected):
        print(f"not of this checkout: {name}")
    recipes = sum(name.startswith("advisor/recipes/") for name in held)
    print(f"{wheels[0].name}: {len(held)} files, {recipes} of them in advisor/recipes")
    return int(expected != held)


if __name__ == "__main__":
    sys.exit(main())
