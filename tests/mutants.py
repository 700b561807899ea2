"""Checks the default tests: small faults are put into the code one at a time, and the tests should fail for each.

    python tests/mutants.py                 # 26 mutants of each part, in two processes
    python tests/mutants.py --of budget     # of one part
    python tests/mutants.py --count 100 --seed 1

The checkout is copied into a temporary folder. A mutant has one operator, constant or condition changed. The tests of
its part run until the first failure. The same seed makes the same mutants of the same code.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
COPIED = ("advisor", "recipes", "tests", "docs", "pyproject.toml", "README.md", "CONTRIBUTING.md")
PROCESSES = 2
# A mutant whose tests take longer, in seconds, is killed: it runs for ever.
LIMIT_S = 600.0

SESSIONS = ("decisions", "steering", "session_ends", "bad_input_search")


@dataclass(frozen=True)
class Part:
    """Modules that are mutated together, and the tests of them: those that fail fastest come first."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


PARTS = {
    "search": Part(
        ("experiment/search.py", "experiment/moves.py", "experiment/known.py", "experiment/plan.py"),
        (*SESSIONS, "plan", "bounds", "search", "search_goals", "stacks", "ladder", "landscapes"),
    ),
    "judge": Part(
        ("judging/judge.py", "judging/runs.py", "judging/numerics.py"),
        ("judge", "numerics", "comparison", "repeats", "search", *SESSIONS, "reference", "objective", "stacks"),
    ),
    "budget": Part(
        ("experiment/measuring/budget.py",),
        ("budget", "hints", *SESSIONS, "guards", "landscapes", "compile_time", "repeats", "disturbed_trials"),
    ),
    "stats": Part(("figures/stats.py",), ("stats", "comparison", "judge", "measurement")),
    "settings": Part(("recipe/settings.py",), ("settings", "catalog", "options", "tuning", "export_settings_file")),
    "config patch": Part(
        ("export/config_patch.py", "export/configs/names.py", "export/configs/yaml_document.py"),
        ("export_config_patch", "config_projects", "patched_exports", "private", "fuzz_configs"),
    ),
}

# --- mutants --------------------------------------------------------------------------------------------------

_OPPOSITES = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
    *((ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div)),
)
_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    one: other for pair in _OPPOSITES for one, other in itertools.permutations(pair)
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
# Subtrees in which a change is none of behaviour, or one that any test shows: types, how long a cache is.
_LEFT_OUT = ("annotation", "returns", "decorator_list")


@dataclass(frozen=True)
class Mutant:
    """One change of a module: the number of its site, in the order of :func:`sites`."""

    part: str
    module: str
    site: int
    line: int
    change: str


def sites(tree: ast.AST) -> Iterator[tuple[ast.AST, str, Callable[[], None]]]:
    """What can be changed in a module: the node with a line, the change in words, and a function that makes it."""
    for node in _nodes(tree):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
            new = _OPERATORS[type(node.ops[0])]
            swap = functools.partial(node.ops.__setitem__, 0, new())
            yield node, f"{type(node.ops[0]).__name__} -> {new.__name__}", swap
        elif isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in _OPERATORS:
            new = _OPERATORS[type(node.op)]
            yield node, f"{type(node.op).__name__} -> {new.__name__}", functools.partial(setattr, node, "op", new())
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield node, f"{node.value} -> {not node.value}", functools.partial(setattr, node, "value", not node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            value = 2 * node.value or 1
            yield node, f"{node.value} -> {value}", functools.partial(setattr, node, "value", value)
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            turned = ast.UnaryOp(ast.Not(), node.test)
            yield node, "condition turned", functools.partial(setattr, node, "test", turned)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
            new_name = _FUNCTIONS[node.func.id]
            yield node, f"{node.func.id} -> {new_name}", functools.partial(setattr, node.func, "id", new_name)


def mutants_of(part: str, count: int, seed: int) -> list[Mutant]:
    """So many mutants of a part, spread evenly over the sites of its modules."""
    found = [
        Mutant(part, module, site, getattr(node, "lineno", 0), change)
        for module in PARTS[part].modules
        for site, (node, change, _) in enumerate(sites(_parsed(ROOT, module)))
    ]
    return random.Random(f"{seed} {part}").sample(found, min(count, len(found)))


def mutated(mutant: Mutant, tree: ast.Module) -> str:
    """The text of a mutant's module, made of the module's tree, which is changed."""
    for site, (_, _, change) in enumerate(sites(tree)):
        if site == mutant.site:
            change()
            break
    return ast.unparse(ast.fix_missing_locations(tree))


def _parsed(root: Path, module: str) -> ast.Module:
    return ast.parse((root / "advisor" / module).read_text(encoding="utf-8"))


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for name, value in ast.iter_fields(node):
        if name not in _LEFT_OUT:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _nodes(child)


# --- running --------------------------------------------------------------------------------------------------


class Copy:
    """A copy of the checkout, in which a module's text can be replaced and the tests of a part be run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            source, to = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, to)
        if not (folder / "advisor" / "recipes").exists():  # a link in a checkout that is installed
            (folder / "advisor" / "recipes").symlink_to("../recipes")

    def survives(self, part: str, limit_s: float | None = LIMIT_S) -> bool:
        """Whether the tests of a part pass; they run until the first failure. Too slow counts as failed."""
        files = [str(next((self.folder / "tests").rglob(f"test_{name}.py"))) for name in PARTS[part].tests]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
        command += ["--hypothesis-profile=ci", "-m", "not (process or compile or app)", *files]
        # Bytecode of an earlier text of a module would be taken for that of a later one.
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            ended = subprocess.run(
                command, cwd=self.folder, env=environment, capture_output=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        return ended.returncode == 0

    @contextlib.contextmanager
    def with_text(self, module: str, text: str) -> Iterator[None]:
        """Have another text in the place of a module's."""
        path = self.folder / "advisor" / module
        before = path.read_text(encoding="utf-8")
        path.write_text(text, encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(before, encoding="utf-8")


def surviving(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Those that the tests pass with, run one by one in a copy of their own."""
    found = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        checkout = Copy(Path(folder))
        for part, of_part in itertools.groupby(mutants, key=lambda mutant: mutant.part):
            if not checkout.survives(part, limit_s=None):
                raise SystemExit(f"the tests of {part} fail as they are")
            for mutant in of_part:
                with checkout.with_text(mutant.module, mutated(mutant, _parsed(ROOT, mutant.module))):
                    if checkout.survives(part):
                        found.append(mutant)
                        print(f"survived: advisor/{mutant.module}:{mutant.line} {mutant.change} ({part})", flush=True)
    return found


def main() -> None:
    """Run the mutants, and print those that survive and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", choices=PARTS, action="append", help="a part; all when left out")
    parser.add_argument("--count", type=int, default=26, help="mutants of each part")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    parts = given.of or list(PARTS)
    mutants = [mutant for part in parts for mutant in mutants_of(part, given.count, given.seed)]
    with ThreadPoolExecutor(PROCESSES) as lanes:
        shares = lanes.map(surviving, (mutants[number::PROCESSES] for number in range(PROCESSES)))
        survived = [mutant for share in shares for mutant in share]
    made, left = Counter(mutant.part for mutant in mutants), Counter(mutant.part for mutant in survived)
    for part in parts:
        print(f"{part:14} {made[part] - left[part]:3d} of {made[part]:3d} killed")
    killed = made.total() - left.total()
    print(f"{'all':14} {killed:3d} of {made.total():3d} killed, {100 * killed / made.total():.0f} %")


if __name__ == "__main__":
    main()
