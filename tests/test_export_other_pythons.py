"""The definitions of exported files, found by each other Python of this machine: symbol tables differ between them."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import advisor

DEFINITIONS = """
import json
from advisor.export.top_level import STEP_MODULES, definitions_of

found = definitions_of(STEP_MODULES)
parts = {name: [(part.text, sorted(part.needs), dict(part.binds)) for part in found[name]] for name in found}
print(json.dumps(parts))
"""
VERSIONS = [f"3.{minor}" for minor in range(11, 16) if minor != sys.version_info.minor]


def pythons(version: str) -> Iterator[str]:
    """Interpreters of this version, of which some may not start."""
    if found := shutil.which(f"python{version}"):
        yield found
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, pyenv.glob(f"versions/{version}*/bin/python"))


def definitions_by(python: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(advisor.__file__).parents[1])}
    return subprocess.run([python, "-c", DEFINITIONS], env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def expected():
    """The definitions that the Python of these tests finds."""
    return json.loads(definitions_by(sys.executable).stdout)


@pytest.mark.parametrize("version", VERSIONS)
def test_it_finds_the_same_definitions(version, expected):
    works = (one for one in pythons(version) if not subprocess.run([one, "-c", ""], check=False).returncode)
    if (python := next(works, None)) is None:
        pytest.skip(f"Python {version} is not installed")
    found = definitions_by(python)
    assert not found.returncode, found.stderr
    assert json.loads(found.stdout) == expected
