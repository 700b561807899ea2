"""The tiers, and what many tests share.

Nothing that a test measures lands in the user's own state folder: trials inherit the environment of the tests.
"""

import atexit
import functools
import gc
import importlib.metadata
import itertools
import multiprocessing
import os
import re
import sys
import tempfile
import textwrap
import types
from collections import Counter
from pathlib import Path

import pytest
from _pytest.mark import _parse_expression

from advisor.records import Outcome
from advisor.runner.trials import Runner

TESTS = Path(__file__).parent

# Folders in a room's folder, and markers: pytest runs them when a path or -m asks for them.
TIERS = ("process", "compile", "app")
ON_DEMAND = ("gpu", "fuzz", "faults")  # these have to be asked for with -m
SKIPPED_BEFORE = "skipped_before"  # those that the last run skipped, for want of a package
MARKERS = frozenset((*TIERS, *ON_DEMAND, "timed", SKIPPED_BEFORE))
MANY_FORKS = 50  # from so many tests that fork on, it pays that forks are cheap
# Files whose few tests take a minute and more.
LONG = ("test_compiled_export.py", "test_ranks.py", "test_interrupts.py", "test_builder.py")
# Files whose tests fork this process time and again, for the workers of loaders: each fork copies the tables of its
# memory, which models grow from file to file, to gigabytes in the end.
FORKING = (
    "test_recipes_bad_input.py",
    "test_feed.py",
    "test_recipes_data.py",
    "test_recipes_kept_promises.py",
    "test_integrations.py",
)
FIRST = (*LONG, *FORKING)

WANTED, SKIPPED = pytest.StashKey(), pytest.StashKey()
NO_TRACEBACK = types.SimpleNamespace(format_stack=list)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    config.option.markexpr = _tiers_to_run(config)
    config.stash[WANTED] = _parse_expression(config.option.markexpr, "-m")
    # What is never collected, libraries take for leaked. Clean-ups run backwards: pytest's last five collections, which
    # look for errors in what the tests left, come before this one and need not go through all that was imported.
    config.add_cleanup(gc.unfreeze)
    # Files take their turns as they are ordered below. xdist would begin with those that have the most tests, and its
    # processes would have grown large before they are forked.
    config.option.loadscopereorder = False
    if hasattr(config, "workerinput"):  # a process of xdist, which has told all: to free what it holds takes seconds
        atexit.register(os._exit, 0)
    # Each catalog asks for the recipes of installed packages, which reads a file of every package.
    importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)
    # Else each process that compiles for the CPU starts a compiler and an interpreter, several times, to see which
    # vector instructions there are; with 0 the code has none, but is generated and compiled all the same.
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
    # Threads of OpenMP that wait for one another take the cores from what runs beside them, for most of a trial's time.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if "PERF_ADVISOR_STATE" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="perf-advisor-tests-", ignore_cleanup_errors=True)
        os.environ["PERF_ADVISOR_STATE"] = folder.name
        config.add_cleanup(folder.cleanup)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Switch the garbage collector off during collection: imports make many objects and leave no garbage."""
    cache = getattr(session.config, "cache", None)  # which -p no:cacheprovider leaves out
    session.config.stash[SKIPPED] = frozenset(cache.get(SKIPPED_BEFORE, ()) if cache else ())
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session):
    """Exclude imported objects from garbage collections, which took a third of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # what the tests import later is looked at for garbage less often, too
    forks = (item.path.name in FORKING or item.get_closest_marker("process") for item in session.items)
    if sum(map(bool, forks)) >= MANY_FORKS:
        from huge_pages import use_huge_pages

        use_huge_pages()


def pytest_terminal_summary(terminalreporter, config):
    """Count the skipped tests by reason, and keep their names for the next run, where ``-m skipped_before`` asks."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(re.sub(r"^Skipped: (could not import '[^']*': )?", "", test.longrepr[2]) for test in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:4d} skipped: {reason}")
    if cache := getattr(config, "cache", None):
        cache.set(SKIPPED_BEFORE, sorted({test.nodeid for test in skipped}))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Use one thread: with tiny tensors, more threads only wait for one another."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
        for backend in (torch.cuda, torch.xpu, torch.mtia):  # each keeps the text of the stack of each seed: half a ms
            backend.traceback = NO_TRACEBACK


@pytest.fixture(autouse=True)
def nothing_left():
    """Clean up after a test: the state that Accelerate keeps for the process, and the workers of loaders.

    The garbage collector would end the workers, in whatever test it runs. Where a loader is part of a cycle, it closes
    the workers' queue first: they never hear that they shall end, and PyTorch waits five seconds for each of them.
    """
    yield
    if "torch" in sys.modules:
        import process_state

        process_state.forget_accelerator()
        if any(child.daemon for child in multiprocessing.active_children()):  # as workers are; builders are not
            process_state.end_loader_workers()


@pytest.fixture
def own_state(tmp_path, monkeypatch):
    """Give the test its own state folder."""
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def flags_kept():
    """Restore the process's flags after the test."""
    from process_state import state_put_back

    with state_put_back():
        yield


def _tiers_to_run(config):
    """The expression of -m, completed by the tiers that run only if asked for."""
    wanted = config.option.markexpr
    left_out = [name for name in ON_DEMAND if name not in wanted]
    if not wanted and config.args_source is not pytest.Config.ArgsSource.ARGS:
        left_out += TIERS
    return " and ".join([*([f"({wanted})"] if wanted else []), *(f"not {name}" for name in left_out)])


def pytest_ignore_collect(collection_path, config):
    """Skip files without a test that -m asks for, because importing all files takes 20 seconds."""
    names = {*re.findall(r"\w+", config.option.markexpr)} - {"and", "or", "not"}
    if not collection_path.match("test_*.py") or names - MARKERS:
        return None
    own, named = _tiers_of(collection_path)
    if any(TESTS.parent / name.partition("::")[0] == collection_path for name in config.stash[SKIPPED]):
        named |= {SKIPPED_BEFORE}
    some = itertools.chain.from_iterable(itertools.combinations(named, count) for count in range(len(named) + 1))
    return None if any(config.stash[WANTED].evaluate(own.union(names).__contains__) for names in some) else True


def _tiers_of(path):
    """The tiers of all tests in a file, by a tier's folder in a room's, and those of some of its tests by a marker."""
    folder, *inside = path.relative_to(TESTS).parts[:-1] or ("",)
    own = ({*inside} & {*TIERS}) | ({folder} & {"gpu"})
    return own, MARKERS & {*re.findall(r"\bmark\.(\w+)", path.read_text(encoding="utf-8"))} - own


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(config, items):
    """Mark each test with the tier of its folder, and order the files; a tier's marker is in the test's own file.

    Processes take a file each in turn (``--dist loadfile --no-loadscope-reorder``): what is long would end alone.
    """
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))
    for path, tests in itertools.groupby(items, lambda item: item.path):
        own, named = _tiers_of(path)
        for item in tests:
            if elsewhere := MARKERS & {mark.name for mark in item.iter_markers()} - own - named:
                raise pytest.UsageError(f"{item.nodeid} is marked {elsewhere}, but not in its file: mark it there")
            for tier in own:
                item.add_marker(tier)
            if config.stash[SKIPPED].intersection((item.nodeid, item.nodeid.partition("::")[0])):
                item.add_marker(SKIPPED_BEFORE)


@pytest.fixture(scope="session")
def state_of_sessions(tmp_path_factory):
    """A state folder for all tests that run sessions: what the machine can do at most is measured once."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def real_sessions(state_of_sessions):
    """Prepare sessions with real trials: a state folder, one thread, and short trials despite a long budget."""
    from real_session import short_trials

    with short_trials(0.5), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERF_ADVISOR_STATE", str(state_of_sessions))
        patch.setenv("OMP_NUM_THREADS", "1")
        Runner.prepare()
        yield


@pytest.fixture
def one_rank(tmp_path):
    """A process group of this process alone."""
    from torch import distributed

    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture
def fresh_compiler(monkeypatch):
    """Start with an empty compiler cache, compile in this process, and clean up afterwards."""
    import torch
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    limit = torch._dynamo.config.recompile_limit
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()
    torch._dynamo.config.recompile_limit = limit
    if "torch._inductor.config" in sys.modules:
        torch._inductor.config.freezing = False


@pytest.fixture
def eager_backend(monkeypatch):
    """`torch.compile` that traces and guards, but generates no code: what is compiled can be counted in seconds."""
    import torch

    usual = torch.compile

    def traced(model=None, **options):
        options.pop("mode", None)
        options.pop("options", None)
        if model is None:  # a decorator with options
            return lambda function: usual(function, **options, backend="eager")
        return usual(model, **options, backend="eager")

    monkeypatch.setattr(torch, "compile", traced)


@pytest.fixture
def compilers(monkeypatch):
    """A machine on which every compiler is found."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("advisor.machine.toolchain.shutil.which", lambda name: f"/bin/{name}")


@pytest.fixture(scope="module")
def started_fork_server():
    """The fork server, which imports PyTorch while the first test begins."""
    Runner.prepare()


@pytest.fixture(scope="module")
def warm_fork_server(tmp_path_factory):
    """The fork server, warm: the first trial waits for its imports."""
    from planted import TINY_TARGET
    from trial_processes import spec_of

    Runner.prepare()
    folder = tmp_path_factory.mktemp("warm")
    (folder / "warm.py").write_text(TINY_TARGET, encoding="utf-8")
    assert Runner().run(spec_of(folder, "warm.py"), lambda message: None).outcome is Outcome.MEASURED


@pytest.fixture
def trial(tmp_path):
    """Run a target's text as a trial: its result and its messages."""
    from trial_processes import spec_of

    def run(text, *, runner=None, **changes):
        (tmp_path / "target.py").write_text(textwrap.dedent(text), encoding="utf-8")
        messages = []
        result = (runner or Runner()).run(spec_of(tmp_path, "target.py", **changes), messages.append)
        return result, messages

    return run
