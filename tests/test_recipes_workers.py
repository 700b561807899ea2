"""Recipes for the workers of a DataLoader: how they start, how many threads they have, how far ahead they are."""

import importlib
import multiprocessing
import subprocess
import sys

import pytest
import torch
from facts import cpu_facts, loader_facts, profile_facts
from loaders import LOADERS, WAITS_LITTLE, Numbers, applied, both_ways, every_loader, samples_of
from proposals import CATALOG, proposed, reason
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from advisor.export.python_file import python_source
from advisor.trial.measurement.data_prints import pickle_problem

OF_WORKERS = ["persistent_workers", "prefetch", "worker_context", "worker_threads"]


@both_ways
def test_workers_get_their_options(change):
    assert change("prefetch", 5, LOADERS["map-style"]()).prefetch_factor == 5
    assert change("persistent_workers", True, LOADERS["map-style"]()).persistent_workers is True
    loader = change("worker_context", "spawn", LOADERS["map-style"]())
    assert loader.multiprocessing_context.get_start_method() == "spawn"
    assert change("worker_context", "default", loader).multiprocessing_context is None


class ToldOfEpochs(Numbers):
    def set_epoch(self, epoch):
        self.epoch = epoch


@both_ways
@pytest.mark.parametrize("stay", [True, False])
def test_more_workers_live_on_between_epochs_as_the_present_ones_do(change, stay):
    changed = change("num_workers", 2, DataLoader(ToldOfEpochs(), num_workers=1, persistent_workers=stay))
    assert (changed.num_workers, changed.persistent_workers) == (2, stay)


@pytest.mark.process
@both_ways
@every_loader
def test_every_kind_of_loader_yields_the_same_samples(change, kind):
    loader = LOADERS[kind]()
    # Forked workers start at once, and with one thread they may be forked.
    settings = {"prefetch": 3, "persistent_workers": True, "worker_threads": 1, "worker_context": "fork"}
    for recipe_id, value in settings.items():
        loader = change(recipe_id, value, loader)
    assert loader.num_workers == 1
    assert samples_of(loader) == [float(number) for number in range(10)]


@pytest.fixture
def usual_start_method():
    """Chooses how this program starts processes, as a user's program may."""

    def choose(method):
        multiprocessing.set_start_method(method, force=True)

    yield choose
    multiprocessing.set_start_method(None, force=True)


@both_ways
def test_the_start_of_a_worker_sets_its_threads_and_runs_the_users_own(change):
    started, here = [], torch.get_num_threads()
    loader = DataLoader(Numbers(), num_workers=1, worker_init_fn=started.append)
    own_start = loader.worker_init_fn
    start = change("worker_threads", here + 1, loader).worker_init_fn
    try:
        start(3)
        assert torch.get_num_threads() == here + 1
    finally:
        torch.set_num_threads(here)
    assert started == [3]
    assert loader.worker_init_fn is own_start
    assert loader.multiprocessing_context is None


@both_ways
@pytest.mark.parametrize(
    ("usual", "own", "expected"),
    [
        ("fork", None, "spawn"),
        ("fork", "fork", "spawn"),
        ("spawn", "fork", "spawn"),
        ("spawn", None, None),
        ("forkserver", None, None),
        ("fork", "spawn", "spawn"),
        ("fork", "forkserver", "forkserver"),
    ],
)
def test_workers_with_threads_are_not_forked(change, usual_start_method, usual, own, expected):
    usual_start_method(usual)
    loader = DataLoader(Numbers(), num_workers=1, multiprocessing_context=own)
    context = change("worker_threads", 2, loader).multiprocessing_context
    assert (context and context.get_start_method()) == expected
    assert change("worker_threads", 0, loader) is loader


@both_ways
def test_a_program_may_still_choose_how_it_starts_processes(change):
    context = change("worker_threads", 2, LOADERS["map-style"]()).multiprocessing_context
    by_default = multiprocessing.get_all_start_methods()[0]
    assert (context.get_start_method() if context else by_default) != "fork"
    assert multiprocessing.get_start_method(allow_none=True) is None


PROGRAM = """
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Work(Dataset):
    worker = None

    def __getitem__(self, index):
        torch.rand(2**20).exp()  # on all the threads that there are
        return torch.get_num_threads(), self.worker

    def __len__(self):
        return 4


def own_start(worker_id):
    Work.worker = worker_id


if __name__ == "__main__":
    torch.set_num_threads(2)
    torch.rand(2**20).exp()  # now OpenMP has threads
    loader = DataLoader(Work(), batch_size=2, num_workers=1, worker_init_fn=own_start)
    if sys.argv[1] == "file":
        import tuned

        loader = tuned.prepare(nn.Linear(1, 1), None, loader)[2]
    else:
        from advisor.step.tuning import Tuning

        loader = Tuning({"data.worker_threads": 2}).prepare(nn.Linear(1, 1), loader)[1]
    print([part.tolist() for batch in loader for part in batch])
"""


@pytest.mark.process
@pytest.mark.parametrize("way", ["apply", "file"])
def test_workers_get_their_threads_in_a_program_that_has_used_threads(way, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "tuned.py").write_text(python_source(CATALOG, {"data.worker_threads": 2}, "train"))
    line = [sys.executable, str(tmp_path / "program.py"), way]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([[2, 2], [0, 0]] * 2)


@both_ways
@pytest.mark.parametrize("recipe_id", OF_WORKERS)
def test_a_loader_without_workers_is_left_alone(change, recipe_id):
    loader = DataLoader(Numbers(), batch_size=4)
    value = {"prefetch": 4, "persistent_workers": True, "worker_context": "spawn", "worker_threads": 2}[recipe_id]
    assert change(recipe_id, value, loader) is loader
    key = CATALOG[recipe_id].key
    assert "about workers" in CATALOG.conflict({key: value, "data.num_workers": 0})
    assert CATALOG.conflict({key: value, "data.num_workers": 2}) is None


@pytest.mark.process
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers_that_are_started_afresh_set_their_threads_too(method):
    loader = applied("worker_threads", 2, applied("worker_context", method, LOADERS["map-style"]()))
    assert pickle_problem(loader) == ""
    assert next(iter(loader))[1].tolist() == [2] * 4
    assert CATALOG.conflict({"data.worker_threads": 2, "data.multiprocessing_context": method}) is None


def test_threads_do_not_go_with_forked_workers():
    both = {"data.worker_threads": 2, "data.multiprocessing_context": "fork"}
    assert "hangs in forked workers" in CATALOG.conflict(both)
    assert CATALOG.conflict({**both, "data.worker_threads": 0}) is None
    assert CATALOG.conflict({**both, "data.multiprocessing_context": "default"}) is None


@pytest.mark.parametrize("recipe_id", OF_WORKERS)
def test_workers_are_needed(recipe_id):
    assert "no workers" in reason(recipe_id, cpu_facts(loader=loader_facts()))
    assert "does not come from a DataLoader" in reason(recipe_id, cpu_facts())
    none_tried = loader_facts(state_problem="samples depend on a count")
    assert reason(recipe_id, cpu_facts(loader=none_tried)) == "the loader has no workers: samples depend on a count"


def test_values_for_a_loader_with_workers():
    short = loader_facts(num_workers=4, length=20)
    facts = cpu_facts(loader=short, profile=profile_facts())
    assert proposed("prefetch", facts) == [4, 8]
    assert proposed("persistent_workers", facts) == [True]
    assert proposed("worker_context", facts) == ["forkserver", "spawn"]
    assert proposed("worker_threads", facts) == [2, 4]


def test_workers_that_start_in_every_short_epoch_are_not_started_afresh():
    short = loader_facts(num_workers=4, length=8)
    assert "persistent_workers first" in reason("worker_context", cpu_facts(loader=short, profile=profile_facts()))
    kept = cpu_facts(loader=loader_facts(num_workers=4, length=8, persistent_workers=True), profile=profile_facts())
    assert proposed("worker_context", kept) == ["forkserver", "spawn"]
    afresh = cpu_facts(loader=short, profile=profile_facts(), current={"data.multiprocessing_context": "spawn"})
    assert proposed("worker_context", afresh) == ["forkserver", "default"]


def test_what_the_user_has_is_measured_off():
    current = {"data.prefetch_factor": 8, "data.persistent_workers": True, "data.multiprocessing_context": "spawn"}
    facts = cpu_facts(loader=loader_facts(num_workers=4, length=20), profile=profile_facts(), current=current)
    assert proposed("prefetch", facts) == [4, 2]
    assert proposed("persistent_workers", facts) == [False]
    assert proposed("worker_context", facts) == ["forkserver", "default"]


def test_what_cannot_be_measured_or_cannot_gain_is_skipped():
    assert "an epoch takes about 1 min 40 s" in reason(
        "persistent_workers", cpu_facts(loader=loader_facts(num_workers=2, length=1000), profile=profile_facts())
    )
    waits_little = cpu_facts(loader=loader_facts(num_workers=2), profile=WAITS_LITTLE)
    assert reason("worker_context", waits_little) == "data wait is 0.2 % of the step"
    assert reason("worker_threads", waits_little) == "data wait is 0.2 % of the step"
    assert "leave no cores idle" in reason("worker_threads", cpu_facts(loader=loader_facts(num_workers=9)))
    unpicklable = loader_facts(num_workers=2, pickle_problem="dataset: a lambda")
    assert "dataset: a lambda" in reason("worker_context", cpu_facts(loader=unpicklable))
    assert "cannot be forked" in reason("worker_threads", cpu_facts(loader=unpicklable))
    assert "dataset: a lambda" in reason("worker_threads", cpu_facts(loader=unpicklable))


class _Odd(Dataset):
    def __init__(self, **parts):
        vars(self).update(parts)


def test_what_cannot_be_pickled_is_named():
    assert pickle_problem(DataLoader(TensorDataset(torch.zeros(2)))) == ""
    assert "dataset" in pickle_problem(DataLoader(_Odd(transform=lambda x: x)))
    assert pickle_problem(DataLoader(_Odd(), collate_fn=lambda x: x)).startswith("collate fn")
    assert "worker init fn" in pickle_problem(DataLoader(_Odd(), num_workers=1, worker_init_fn=lambda x: x))


def test_a_large_dataset_is_not_pickled_to_its_end():
    class Wide:
        def __reduce__(self):
            reads.append(1)
            return bytes, (b"x" * 2**22,)

    reads = []
    assert pickle_problem(DataLoader(_Odd(parts=[Wide() for _ in range(40)]))) == ""
    assert len(reads) < 40
    tensors = torch.zeros(2**26)  # a quarter of a gibibyte, which is not copied either
    assert pickle_problem(DataLoader(_Odd(data=tensors, transform=None))) == ""


@pytest.mark.process
def test_the_exported_file_sets_up_the_workers(tmp_path, monkeypatch):
    settings = {"data.prefetch_factor": 3, "data.persistent_workers": True, "data.worker_threads": 2}
    source = python_source(CATALOG, {**settings, "data.num_workers": 2}, "train")
    (tmp_path / "tuned_workers.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    tuned = importlib.import_module("tuned_workers")
    _, _, loader = tuned.prepare(nn.Linear(1, 1), None, DataLoader(Numbers(), batch_size=5))
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 3, True)
    assert {count for _, threads in loader for count in threads.tolist()} == {2}
