"""The packages that tests import: pyproject.toml names them, and those that pytest imports to collect are in `dev`."""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
# Packages whose distribution has another name.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "_pytest": "pytest",
    "hydra": "hydra-core",
    "pynvml": "nvidia-ml-py",
    "yaml": "pyyaml",
}
FILES = [path.relative_to(ROOT) for folder in ("tests", "examples") for path in (ROOT / folder).rglob("*.py")]
# Modules of this repository, and some that tests write.
OURS = {part.removesuffix(".py") for path in FILES for part in path.parts}
OURS |= {"advisor", "recipes", "streams_of_this_test"}


def named(*extras):
    """The distributions in the dependencies and in these extras, without their versions."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]
    return {re.match(r"[\w-]+", line)[0].lower() for line in lines}


def modules_of(node):
    """The modules that a statement imports, or that a call of ``pytest.importorskip`` asks for."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [] if node.level else [node.module]
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "importorskip":
        return [word.value for word in node.args if isinstance(word, ast.Constant)]
    return []


def distributions_of(nodes):
    """The distributions of these statements' imports, other than Python's own and this one."""
    packages = {name.partition(".")[0] for node in nodes for name in modules_of(node)}
    return {DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in packages - OURS - sys.stdlib_module_names}


def parsed(path):
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def test_a_package_that_a_test_imports_is_named_in_an_extra():
    known = named(*EXTRAS)
    unknown = {str(path): distributions_of(ast.walk(parsed(path))) - known for path in FILES}
    assert {path: packages for path, packages in unknown.items() if packages} == {}


def test_pytest_can_collect_with_the_dev_extra_alone():
    known = named("dev")
    collected = [path for path in FILES if path.match("test_*.py") or path.name == "conftest.py"]
    unknown = {str(path): distributions_of(parsed(path).body) - known for path in collected}
    assert {path: packages for path, packages in unknown.items() if packages} == {}
