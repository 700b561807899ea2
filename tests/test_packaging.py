"""The installed project: its metadata, entry point, modules and data files. No network, no build."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path

import advisor
from advisor.cli.main import main
from advisor.recipe.catalog import ENTRY_POINT_GROUP, load_catalog

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
INSTALLED = metadata.distribution("perf-advisor")


def test_the_version_is_one():
    assert INSTALLED.version == PROJECT["project"]["version"] == advisor.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(\d[^]]*)\]", changelog, re.M)[0] == advisor.__version__


def test_the_metadata_says_what_it_needs():
    assert INSTALLED.metadata["Requires-Python"] == ">=3.11"
    assert INSTALLED.metadata["License-Expression"] == "Apache-2.0"
    needed = {re.match(r"[\w-]+", line)[0] for line in INSTALLED.requires if "extra ==" not in line}
    assert needed == {re.match(r"[\w-]+", line)[0] for line in PROJECT["project"]["dependencies"]}


def test_the_command_is_the_function():
    [command] = metadata.entry_points(group="console_scripts", name="perf-advisor")
    assert command.load() is main


def test_python_m_is_the_command():
    done = subprocess.run([sys.executable, "-m", "advisor", "--version"], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == f"perf-advisor {advisor.__version__}"
    assert f"torch {metadata.version('torch')}, " in second


def test_the_recipes_are_installed_as_a_package():
    files = {path.name for path in (ROOT / "recipes").glob("*.py")}
    assert {path.name for path in resources.files("advisor.recipes").iterdir() if path.name.endswith(".py")} == files
    modules = {type(recipe).__module__ for recipe in load_catalog()}
    assert modules == {f"advisor.recipes.{name.removesuffix('.py')}" for name in files - {"__init__.py"}}


def test_the_group_for_recipes_of_others_holds_none_of_ours():
    assert not metadata.entry_points(group=ENTRY_POINT_GROUP)
