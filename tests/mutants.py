"""Checks the default tests: small faults are put into the code one at a time, and the tests should fail for each.

    python tests/mutants.py                 # 19 mutants of each part, in two processes
    python tests/mutants.py --of budget     # of one part
    python tests/mutants.py --count 100 --seed 1

The checkout is copied into a temporary folder. A mutant has one operator, constant or condition changed. The tests of
its part run until the first failure. The same seed makes the same mutants of the same code.
"""

import argparse
import ast
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
COPIED = ("advisor", "recipes", "tests", "docs", "examples", "pyproject.toml", "README.md", "CONTRIBUTING.md")
PROCESSES = 2
LIMIT_S = 600.0  # a mutant whose tests take longer, in seconds, is killed: it runs for ever


@dataclass(frozen=True)
class Part:
    """Modules that are mutated together, and the folders or files of their tests; what fails fastest comes first."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


PARTS = {
    "search": Part(
        ("experiment/search.py", "experiment/moves.py", "experiment/known.py", "experiment/plan.py"), ("experiment",)
    ),
    "judge": Part(("judging/judge.py", "judging/runs.py", "judging/numerics.py"), ("judging", "experiment")),
    "budget": Part(("experiment/measuring/budget.py",), ("experiment",)),
    "stats": Part(("figures/stats.py",), ("figures", "judging")),
    "settings": Part(("recipe/settings.py",), ("recipe", "step/test_tuning.py", "export/test_export_settings_file.py")),
    "config patch": Part(
        ("export/config_patch.py", "export/configs/kinds.py", "export/configs/document.py"), ("export",)
    ),
    "step": Part(("step/step.py", "step/graph.py", "step/batch.py", "step/loss.py"), ("step", "loops", "recipes")),
    "script diff": Part(("python/changes.py", "python/edits.py"), ("scripts", "export")),
}

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
        for site, (node, change, _) in enumerate(sites(_parsed(module)))
    ]
    return random.Random(f"{seed} {part}").sample(found, min(count, len(found)))


def mutated(mutant: Mutant, tree: ast.Module) -> str:
    """The text of a mutant's module, made of the module's tree, which is changed."""
    for site, (_, _, change) in enumerate(sites(tree)):
        if site == mutant.site:
            change()
            break
    return ast.unparse(ast.fix_missing_locations(tree))


def _parsed(module: str) -> ast.Module:
    return ast.parse((ROOT / "advisor" / module).read_text(encoding="utf-8"))


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for name, value in ast.iter_fields(node):
        if name not in _LEFT_OUT:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _nodes(child)


def copied(folder: Path) -> None:
    """Copy the checkout into a folder, where a module's text can be replaced and the tests of a part be run."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, folder / name)
    if not (folder / "advisor" / "recipes").exists():  # a link in a checkout that is installed
        (folder / "advisor" / "recipes").symlink_to("../recipes")


def passes(folder: Path, part: str, limit_s: float | None = LIMIT_S) -> bool:
    """Whether the tests of a part pass; they run until the first failure. Too slow counts as failed."""
    files = [f"tests/{name}" for name in PARTS[part].tests]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    command += ["--hypothesis-profile=ci", "-m", "not (process or compile or app or fuzz or faults)", *files]
    # Bytecode of an earlier text of a module would be taken for that of a later one.
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return not subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=limit_s).returncode  # noqa: PLW1510
    except subprocess.TimeoutExpired:
        return False


def surviving(mutants: Sequence[Mutant]) -> list[Mutant]:
    """The mutants that the tests do not detect, run one by one in a copy of the checkout."""
    found = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        copied(folder := Path(name))
        for part, of_part in itertools.groupby(mutants, key=lambda mutant: mutant.part):
            if not passes(folder, part, limit_s=None):
                raise SystemExit(f"the tests of {part} fail as they are")
            for mutant in of_part:
                path = folder / "advisor" / mutant.module
                path.write_text(mutated(mutant, _parsed(mutant.module)), encoding="utf-8")
                if passes(folder, part):
                    found.append(mutant)
                    print(f"survived: advisor/{mutant.module}:{mutant.line} {mutant.change} ({part})", flush=True)
                shutil.copy2(ROOT / "advisor" / mutant.module, path)
    return found


def main() -> None:
    """Run the mutants, and print those that survive and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", choices=PARTS, action="append", help="a part; all when left out")
    parser.add_argument("--count", type=int, default=19, help="mutants of each part")
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
