"""Checks the default tests: small faults are put into the code one at a time, and the tests should fail for each.

    python tests/mutants.py                 # 26 mutants of each part, in two processes
    python tests/mutants.py --of budget     # of one part
    python tests/mutants.py --count 100 --seed 1

The checkout is copied into a temporary folder. A mutant has one operator, constant or condition changed. The tests of
its part that call the changed function run until the first failure, the shortest file first; where the change is not
in a function, all of them run. The same seed makes the same mutants of the same code.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
COPIED = ("advisor", "recipes", "tests", "docs", "pyproject.toml", "README.md", "CONTRIBUTING.md")
PROCESSES = 2
# A mutant whose tests take longer, in seconds, is killed: it runs for ever.
LIMIT_S = 300.0
_FIRST_MTIME_S = 1_000_000_000

SESSIONS = ("decisions", "steering", "session_ends", "bad_input_search")


@dataclass(frozen=True)
class Part:
    """Modules that are mutated together, and the tests of them: those that fail fastest come first."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


PARTS = {
    "search": Part(
        ("experiment/search.py", "experiment/moves.py", "experiment/known.py", "experiment/plan.py"),
        (
            *("plan", "bounds", "session_ends", "decisions", "search", "search_goals", "leaps", "ladder", "lab"),
            *("bad_input_search", "steering", "landscapes"),
        ),
    ),
    "judge": Part(
        ("experiment/judging/judge.py", "experiment/judging/runs.py", "experiment/judging/numerics.py"),
        (
            *("judge", "numerics", "comparison", "repeats", "search", "session_ends", "decisions"),
            *("reference", "trial_data", "objective", "leaps"),
        ),
    ),
    "budget": Part(
        ("experiment/measuring/budget.py",),
        ("budget", "lab", "hints", *SESSIONS, "guards", "landscapes", "compile_time", "repeats", "disturbed_trials"),
    ),
    "stats": Part(
        ("figures/stats.py", "figures/samples.py"), ("stats", "samples", "comparison", "judge", "measurement")
    ),
    "settings": Part(("recipe/settings.py",), ("settings", "catalog", "options", "tuning", "export_settings_file")),
    "config patch": Part(
        ("export/config_patch.py", "export/configs/names.py", "export/configs/yaml_document.py"),
        ("export_config_patch", "config_projects", "patched_exports", "private", "fuzz_configs"),
    ),
}

# --- mutants --------------------------------------------------------------------------------------------------

_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
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
            yield node, f"{type(node.ops[0]).__name__} -> {new.__name__}", functools.partial(_swap, node.ops, 0, new())
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


def _swap(nodes: list[ast.cmpop], place: int, new: ast.cmpop) -> None:
    nodes[place] = new


# --- running --------------------------------------------------------------------------------------------------


class Copy:
    """A copy of the checkout, and its tests run in processes that are forked once the libraries are imported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            source, to = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__", "recipes"), symlinks=True)
            else:
                shutil.copy2(source, to)
        if not (folder / "recipes").exists():
            shutil.copytree(ROOT / "recipes", folder / "recipes", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "advisor" / "recipes").symlink_to("../recipes")
        self._writes = 0

    def fails(self, tests: Sequence[str], observer: object = None) -> str:
        """The test that fails first, "too slow", or nothing when all pass; the tests are files or node ids."""
        told = self.folder / "failed"
        told.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            os.setsid()
            os._exit(self._run(tests, told, observer))
        deadline = time.monotonic() + LIMIT_S
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "too slow"
            time.sleep(0.05)
        return told.read_text() if told.exists() else "the tests could not be run"

    @contextlib.contextmanager
    def with_text(self, module: str, text: str) -> Iterator[None]:
        """Have another text in the place of a module's."""
        path = self.folder / "advisor" / module
        before = path.read_text(encoding="utf-8")
        self._write(path, text)
        try:
            yield
        finally:
            self._write(path, before)

    def _write(self, path: Path, text: str) -> None:
        """Write a module as of a second of its own: what was compiled of it is told apart by that."""
        path.write_text(text, encoding="utf-8")
        self._writes += 1
        os.utime(path, (_FIRST_MTIME_S + self._writes,) * 2)

    def _run(self, tests: Sequence[str], told: Path, observer: object) -> int:
        import hypothesis
        import pytest

        class First:
            failed = ""

            def pytest_runtest_logreport(self, report):
                if report.failed:
                    self.failed = self.failed or report.nodeid

            def pytest_collectreport(self, report):
                if report.failed:
                    self.failed = self.failed or f"{report.nodeid} (collecting)"

        os.chdir(self.folder)
        sys.path.insert(0, str(self.folder))
        sys.dont_write_bytecode = False
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        hypothesis.settings.register_profile("mutants", deadline=None)  # calls are slow while they are recorded
        hypothesis.settings.load_profile("mutants")
        first = First()
        options = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        plugins = [first, observer] if observer else [first]
        code = pytest.main([*options, "-m", "not (process or compile or app)", *tests], plugins=plugins)
        told.write_text(first.failed or ("" if code == 0 else f"pytest ended with {int(code)}"))
        return 0


class CallsOfTests:
    """Records, as a plugin of pytest, each test's seconds and the functions of some modules that it calls."""

    def __init__(self, modules: Collection[Path], told: Path) -> None:
        self._modules = {str(path) for path in modules}
        self._told = told
        self._calls: set[tuple[str, int]] = set()
        self._tests: list[tuple[str, float, list[tuple[str, int]]]] = []
        self._since = 0.0

    def pytest_runtest_logstart(self, nodeid: str) -> None:  # before the test's fixtures
        self._calls = set()
        self._since = time.monotonic()
        threading.setprofile(self._saw)
        sys.setprofile(self._saw)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        sys.setprofile(None)
        self._tests.append((nodeid, time.monotonic() - self._since, sorted(self._calls)))

    def pytest_sessionfinish(self) -> None:
        self._told.write_text(json.dumps(self._tests))

    def _saw(self, frame, event, _):
        if event == "call" and frame.f_code.co_filename in self._modules:
            self._calls.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))


@dataclass(frozen=True)
class Observed:
    """The tests of a part in the order of its files, with seconds and the places (file, line) of functions called."""

    tests: tuple[tuple[str, float, frozenset[tuple[str, int]]], ...]

    def of(self, path: Path, lines: range | None) -> list[str]:
        """The tests that call a function within some lines of a module, those of the shortest file first."""
        found = [
            (test, seconds)
            for test, seconds, calls in self.tests
            if lines is None or any(file == str(path) and line in lines for file, line in calls)
        ]
        of_file: defaultdict[str, float] = defaultdict(float)
        for test, seconds in found:
            of_file[test.split("::")[0]] += seconds
        return [test for test, _ in sorted(found, key=lambda one: of_file[one[0].split("::")[0]])]


def function_around(tree: ast.Module, line: int) -> range | None:
    """The lines of the outermost function around a line, with its decorators; None outside of functions."""
    for node in ast.walk(tree):  # breadth first
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.body[0].lineno <= line <= node.end_lineno:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            return range(first, node.end_lineno + 1)
    return None


def observed(checkout: Copy, part: str) -> Observed:
    """Run the tests of a part as they are, which have to pass."""
    told = checkout.folder / "calls"
    modules = [checkout.folder / "advisor" / module for module in PARTS[part].modules]
    files = [str(next(Path("tests").rglob(f"test_{name}.py"))) for name in PARTS[part].tests]
    if failed := checkout.fails(files, CallsOfTests(modules, told)):
        raise SystemExit(f"the tests of {part} fail as they are: {failed}")
    return Observed(
        tuple(
            (test, seconds, frozenset((file, line) for file, line in calls))
            for test, seconds, calls in json.loads(told.read_text())
        )
    )


def run(mutants: Sequence[Mutant], path: Path) -> None:
    """Run some mutants in a copy of their own; a line of JSON for each is appended to a file."""
    import hypothesis  # noqa: F401
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        checkout = Copy(Path(folder))
        for part, of_part in itertools.groupby(mutants, key=lambda mutant: mutant.part):
            tests = observed(checkout, part)
            for mutant in of_part:
                place = checkout.folder / "advisor" / mutant.module
                tree = _parsed(checkout.folder, mutant.module)
                function = function_around(tree, mutant.line)
                with checkout.with_text(mutant.module, mutated(mutant, tree)):
                    killer = checkout.fails(tests.of(place, function) or tests.of(place, None))
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([mutant.part, mutant.module, mutant.line, mutant.change, killer]) + "\n")


def main() -> None:
    """Run the mutants, and print those that survive and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", choices=PARTS, action="append", help="a part; all when left out")
    parser.add_argument("--count", type=int, default=26, help="mutants of each part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", help="a file that gets a line of JSON for each mutant as it ends")
    given = parser.parse_args()
    parts = given.of or list(PARTS)
    mutants = [mutant for part in parts for mutant in mutants_of(part, given.count, given.seed)]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        path = Path(given.lines or Path(folder) / "ended.jsonl")
        context = multiprocessing.get_context("spawn")  # each imports torch before it forks, and this one never does
        shares = [(mutants[lane::PROCESSES], path) for lane in range(PROCESSES)]
        lanes = [context.Process(target=run, args=share) for share in shares]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        if any(lane.exitcode for lane in lanes):
            raise SystemExit(1)
        ended = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    made, killed = Counter(part for part, *_ in ended), Counter(part for part, *_, killer in ended if killer)
    for part, module, line, change, killer in sorted(ended):
        if not killer:
            print(f"survived: advisor/{module}:{line} {change} ({part})")
    for part in parts:
        print(f"{part:14} {killed[part]:3d} of {made[part]:3d} killed")
    print(f"{'all':14} {killed.total():3d} of {made.total():3d} killed, {100 * killed.total() / made.total():.0f} %")


if __name__ == "__main__":
    main()
