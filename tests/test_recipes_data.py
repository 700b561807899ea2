"""Recipes of the input pipeline."""

from __future__ import annotations

import copy
import importlib
import multiprocessing
import random
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from facts import cpu_facts, gpu_facts, loader_facts, profile_facts
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
)
from torchvision.datasets import FakeData
from torchvision.transforms import Compose, Normalize, ToTensor, v2

from advisor.catalog import load_catalog
from advisor.export.python_file import python_source
from advisor.plan import StepPlan
from advisor.portable.device_loader import DeviceLoader
from advisor.portable.transforms import names_of_moved
from advisor.recipe import Components
from advisor.records import Mode
from advisor.runtime.loader import loop_loader
from advisor.runtime.step import InferStep, TrainStep
from advisor.runtime.tuning import Tuning
from advisor.trial.feed import Feed
from advisor.trial.host_tensors import HostTensorCounter
from advisor.trial.pickling import pickle_problem
from advisor.trial.probe import probe_batches

CATALOG = load_catalog()
WAITS_LITTLE = profile_facts(phases={"data wait": 0.2, "host-to-device": 0.1, "forward": 99.7})
OF_WORKERS = ["persistent_workers", "prefetch", "worker_context", "worker_threads"]


def proposed(recipe_id, facts):
    return [candidate.value for candidate in CATALOG.propose(facts, only=[recipe_id]).candidates]


def reason(recipe_id, facts):
    proposals = CATALOG.propose(facts, only=[recipe_id])
    assert not proposals.candidates
    return proposals.skipped[recipe_id]


class Numbers(Dataset):
    def __getitem__(self, index):
        return torch.tensor(float(index)), torch.get_num_threads()

    def __len__(self):
        return 10


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(10.0))


@dataclass
class Pair:
    inputs: torch.Tensor
    threads: torch.Tensor


def as_pair(samples):
    return Pair(*(torch.stack([torch.as_tensor(sample[part]) for sample in samples]) for part in (0, 1)))


def mark_worker(worker_id):
    torch.manual_seed(100 + worker_id)


LOADERS = {
    "map-style": lambda: DataLoader(Numbers(), batch_size=4, num_workers=1),
    "iterable": lambda: DataLoader(Stream(), batch_size=4, num_workers=1),
    "batch sampler": lambda: DataLoader(
        Numbers(), batch_sampler=BatchSampler(SequentialSampler(range(10)), 4, drop_last=False), num_workers=1
    ),
    "dataclass": lambda: DataLoader(Numbers(), batch_size=4, num_workers=1, collate_fn=as_pair),
    "whole batches": lambda: DataLoader(Stream(), batch_size=None, num_workers=1),
}


def first_tensor(batch):
    if isinstance(batch, Pair):
        return batch.inputs
    return batch if isinstance(batch, torch.Tensor) else batch[0]


def samples_of(loader):
    return torch.cat([first_tensor(batch).reshape(-1) for batch in loader]).tolist()


def applied(recipe_id, value, loader):
    parts = Components(nn.Linear(1, 1), None, loader, StepPlan(Mode.TRAIN, "cpu"))
    CATALOG[recipe_id].apply(parts, value)
    return parts.data


def by_code(recipe_id, value, loader):
    names = {"torch": torch, "loader": loader, "device": torch.device("cpu")}
    exec(CATALOG[recipe_id].code(value), names)
    return names["loader"]


both_ways = pytest.mark.parametrize("change", [applied, by_code], ids=["apply", "code"])
every_loader = pytest.mark.parametrize("kind", LOADERS)


# --- workers --------------------------------------------------------------------------------------------------


@both_ways
def test_workers_get_their_options(change):
    assert change("prefetch", 5, LOADERS["map-style"]()).prefetch_factor == 5
    assert change("persistent_workers", True, LOADERS["map-style"]()).persistent_workers is True
    loader = change("worker_context", "spawn", LOADERS["map-style"]())
    assert loader.multiprocessing_context.get_start_method() == "spawn"
    assert change("worker_context", "default", loader).multiprocessing_context is None


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
        from advisor.runtime.tuning import Tuning

        loader = Tuning({"data.worker_threads": 2}).prepare(nn.Linear(1, 1), loader)[1]
    print([part.tolist() for batch in loader for part in batch])
"""


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


# --- batches on the device ------------------------------------------------------------------------------------


def plan_of(**changes):
    return StepPlan(Mode.TRAIN, "cpu", **changes)


def test_a_loader_is_wrapped_only_when_the_plan_says_so():
    loader, batch = LOADERS["map-style"](), torch.ones(3)
    assert loop_loader(loader, plan_of()) is loader
    assert loop_loader(batch, plan_of(device_prefetch=True)) is batch
    wrapped = loop_loader(loader, plan_of(device_prefetch=True))
    assert (len(wrapped), wrapped.batch_size, wrapped.dataset) == (3, 4, loader.dataset)
    assert wrapped.num_workers == 1
    assert copy.copy(wrapped).batch_size == 4
    with pytest.raises(AttributeError):
        _ = wrapped.no_such_thing


@every_loader
def test_a_wrapped_loader_yields_the_same_batches_every_epoch(kind):
    loader = loop_loader(LOADERS[kind](), plan_of(device_prefetch=True))
    for _ in range(2):
        assert samples_of(loader) == [float(number) for number in range(10)]


def test_what_is_left_for_the_device_is_done_there_and_in_the_probe():
    plan = plan_of(device_transform=lambda batch: [batch[0] + 100, batch[1]])
    loader = DataLoader(Numbers(), batch_size=4)
    assert samples_of(loop_loader(loader, plan))[:2] == [100.0, 101.0]
    assert first_tensor(probe_batches(loader, 0, plan)[0])[0] == 100.0
    feed = Feed(loop_loader(loader, plan))
    assert not feed.resident
    assert [len(feed.next()[0]) for _ in range(4)] == [4, 4, 2, 4]


def test_prepare_returns_a_loader_that_the_loop_can_use_as_before():
    model = nn.Linear(1, 1)
    tuning = Tuning({"data.device_prefetch": True})
    _, same = tuning.prepare(model, LOADERS["map-style"]())
    assert isinstance(same, DataLoader)  # on the CPU there is nothing to copy ahead


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (gpu_facts(), "DataLoader"),
        (gpu_facts(loader=loader_facts(), profile=WAITS_LITTLE), "0.3 % of the step"),
        (cpu_facts(loader=loader_facts()), "needs a CUDA GPU"),
    ],
)
def test_copying_ahead_is_skipped_where_nothing_is_copied(facts, expected):
    assert expected in reason("gpu_prefetch", facts)


def test_copying_ahead_is_tried_where_copies_show():
    assert proposed("gpu_prefetch", gpu_facts(loader=loader_facts(), profile=profile_facts())) == [True]


def test_copies_that_do_not_block_need_pinned_memory():
    assert proposed("non_blocking", gpu_facts(loader=loader_facts(pin_memory=True))) == [True]
    assert "pin_memory tries both" in reason("non_blocking", gpu_facts(loader=loader_facts()))
    assert "DataLoader" in reason("non_blocking", gpu_facts())


def test_the_setting_of_its_own_decides_over_pinned_memory():
    parts = Components(nn.Linear(1, 1), None, DataLoader(Numbers()), StepPlan(Mode.TRAIN, "cuda"))
    for recipe, value in CATALOG.in_order({"data.pin_memory": True, "data.non_blocking": False}):
        recipe.apply(parts, value)
    assert parts.data.pin_memory is True
    assert parts.plan.non_blocking is False


# --- the exported file ----------------------------------------------------------------------------------------


def exported(settings, mode="train"):
    names = {}
    source = python_source(CATALOG, settings, mode)
    exec(compile(source, "tuned.py", "exec"), names)
    return source, names


@every_loader
def test_the_exported_file_wraps_the_loader(kind):
    source, names = exported({"data.device_prefetch": True})
    assert "non_blocking=True" in source
    assert source.count("import typing") == 1
    assert source.index("import typing") < source.index("import torch")
    _, _, loader = names["prepare"](nn.Linear(1, 1), None, LOADERS[kind]())
    assert type(loader).__name__ == "DeviceLoader"
    assert samples_of(loader) == [float(number) for number in range(10)]
    assert names["prepare"](nn.Linear(1, 1), None, [1])[2] == [1]


def test_the_exported_file_sets_up_the_workers(tmp_path, monkeypatch):
    settings = {"data.prefetch_factor": 3, "data.persistent_workers": True, "data.worker_threads": 2}
    source = python_source(CATALOG, {**settings, "data.num_workers": 2}, "train")
    (tmp_path / "tuned_workers.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    tuned = importlib.import_module("tuned_workers")
    _, _, loader = tuned.prepare(nn.Linear(1, 1), None, DataLoader(Numbers(), batch_size=5))
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 3, True)
    assert {count for _, threads in loader for count in threads.tolist()} == {2}


def test_the_device_loader_of_the_file_is_the_one_of_the_trials():
    source, _ = exported({"data.device_prefetch": True})
    assert "class DeviceLoader" in source
    assert DeviceLoader.copied_ahead.__name__ in source


# --- transforms on the device ---------------------------------------------------------------------------------

NORMALISE = v2.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.2])
TAIL = [v2.ToDtype(torch.float32, scale=True), NORMALISE]


def pictures(transform, **options):
    return FakeData(6, (3, 8, 8), num_classes=3, transform=transform, **options)


class Named(Dataset):
    """Samples are dicts; a transform in an attribute."""

    def __init__(self, transform):
        self.transform = transform

    def __getitem__(self, index):
        image = torch.full((3, 4, 4), 20 * index, dtype=torch.uint8)
        return {"image": self.transform(image), "label": index, "name": f"picture {index}"}

    def __len__(self):
        return 5


class Hidden(Named):
    def __init__(self):
        pass

    def transform(self, image):
        return NORMALISE(image.float())


DATASETS = {
    "torchvision's": lambda: pictures(v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip(), *TAIL])),
    "a subset": lambda: Subset(pictures(v2.Compose([v2.ToImage(), *TAIL])), [5, 3, 1]),
    "a dict with names": lambda: Named(v2.Compose([v2.RandomVerticalFlip(), *TAIL])),
    "nothing but movable ones": lambda: Named(v2.Compose(TAIL)),
    "the older transforms": lambda: pictures(Compose([ToTensor(), Normalize([0.5] * 3, [0.1] * 3)])),
}


def images_of(batch):
    return batch["image"] if isinstance(batch, dict) else batch[0]


def seeded_batches(loader):
    torch.manual_seed(7)
    return list(loader)


def split_by_apply(loader):
    parts = Components(nn.Linear(1, 1), None, loader, StepPlan(Mode.TRAIN, "cpu"))
    CATALOG["gpu_transforms"].apply(parts, True)
    return loop_loader(parts.data, parts.plan)


def split_by_file(loader):
    _, names = exported({"data.transforms_on_device": True})
    return names["prepare"](nn.Linear(1, 1), None, loader)[2]


class ByCode:
    """A loader and the transform of its batches, as the recipe's code leaves them."""

    def __init__(self, loader):
        names = {"torch": torch, "loader": loader}
        exec(CATALOG["gpu_transforms"].code(True), names)
        self.loader, self.transform = names["loader"], names["device_transform"]

    def __iter__(self):
        return map(self.transform, self.loader)


@pytest.mark.parametrize("split", [split_by_apply, split_by_file, ByCode])
@pytest.mark.parametrize("kind", DATASETS)
def test_transforms_on_batches_do_what_they_did_to_samples(split, kind):
    loader = DataLoader(DATASETS[kind](), batch_size=2)
    tuned = split(loader)
    before, after = seeded_batches(loader), seeded_batches(tuned)
    assert len(after) == len(before) > 1
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(images_of(new), images_of(old))
        if isinstance(old, dict):
            assert new["name"] == old["name"]
            assert torch.equal(new["label"], old["label"])


def test_what_travels_to_the_device_is_smaller():
    loader = DataLoader(DATASETS["torchvision's"](), batch_size=2)
    split = split_by_apply(loader)
    assert images_of(next(iter(split.loader))).dtype == torch.uint8
    assert images_of(next(iter(loader))).dtype == torch.float32
    assert names_of_moved(loader) == ["ToDtype", "Normalize"]
    assert names_of_moved(DataLoader(DATASETS["the older transforms"]())) == ["Normalize"]


def test_the_users_random_numbers_are_not_touched():
    loader = DataLoader(DATASETS["torchvision's"](), batch_size=2)
    torch.manual_seed(3)
    random.seed(3)
    state, other = torch.get_rng_state(), random.getstate()
    names_of_moved(loader)
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == other


def one_mean_per_batch(samples):
    images = torch.stack([image.float() for image, _ in samples])
    return images - images.mean(), torch.tensor([label for _, label in samples])


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        (lambda: DataLoader(pictures(v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip()]))), "do not end in one"),
        (lambda: DataLoader(pictures(None), collate_fn=list), "do not end in one"),
        (lambda: DataLoader(Hidden()), "do not end in one"),
        (lambda: DataLoader(Stream()), "iterable"),
        (lambda: DataLoader(DATASETS["torchvision's"](), batch_size=None), "whole batches"),
        (lambda: DataLoader(DATASETS["torchvision's"](), collate_fn=one_mean_per_batch), "do not do to a batch"),
        (lambda: DataLoader(DATASETS["torchvision's"](), collate_fn=lambda samples: samples[0][1]), "not known"),
    ],
)
def test_what_cannot_be_moved_says_why(loader, expected):
    with pytest.raises(ValueError, match=expected):
        names_of_moved(loader())


def test_moving_is_tried_where_there_is_something_to_move():
    moved = loader_facts(movable_transforms=("ToDtype", "Normalize"))
    facts = gpu_facts(loader=moved, profile=profile_facts())
    assert proposed("gpu_transforms", facts) == [True]
    assert CATALOG["gpu_transforms"].why(facts, True).endswith("ToDtype, Normalize can be moved.")
    assert "0.3 % of the step" in reason("gpu_transforms", gpu_facts(loader=moved, profile=WAITS_LITTLE))
    assert "iterable" in reason("gpu_transforms", gpu_facts(loader=loader_facts(transforms_problem="it is iterable")))
    assert "DataLoader" in reason("gpu_transforms", gpu_facts())


def test_both_go_together_in_the_file():
    source, names = exported({"data.transforms_on_device": True, "data.device_prefetch": True, "data.num_workers": 1})
    assert source.count("loader = DeviceLoader(") == 1
    loader = DataLoader(Named(v2.Compose(TAIL)), batch_size=2)
    tuned = names["prepare"](nn.Linear(1, 1), None, loader)[2]
    assert tuned.num_workers == 1
    torch.testing.assert_close(images_of(seeded_batches(tuned)[0]), images_of(seeded_batches(loader)[0]))


# --- tensors made inside the step -----------------------------------------------------------------------------


def made(work):
    """How many tensors ``work`` makes on the host and sends to a device; ``meta`` stands in for it."""
    counter = HostTensorCounter()
    with counter:
        work(torch.empty(4, 3, device="meta"))
    return counter.copied


@pytest.mark.parametrize(
    ("work", "copies"),
    [
        (lambda x: x + torch.arange(3).to(x.device), 1),
        (lambda x: x * (torch.ones(3) * 2).to(x.device) + torch.zeros(4, 1).to(x.device), 2),
        (lambda x: x + torch.arange(3, device=x.device), 0),
        (lambda x: x * 2, 0),
        (lambda x: x.copy_(torch.randn(4, 3)), 1),
        (lambda x: torch.ones(3).sum(), 0),
        (lambda x: x + CONSTANT.to(x.device), 0),
    ],
)
def test_copies_of_tensors_that_the_step_made_are_counted(work, copies):
    assert made(work) == copies


CONSTANT = torch.ones(3)


def test_the_reason_says_how_many():
    facts = gpu_facts(profile=profile_facts(host_made_tensors=2))
    assert proposed("create_on_device", facts) == [True]
    assert "makes 2 tensors on the host" in CATALOG["create_on_device"].why(facts, True)
    none = gpu_facts(profile=profile_facts(host_made_tensors=0))
    assert "copies no tensor" in reason("create_on_device", none)
    assert "could not follow" in reason("create_on_device", gpu_facts(profile=profile_facts()))


class WhereItIs(nn.Module):
    """Says on which device a tensor without one is created; ``meta`` as in deferred initialisation."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, device="meta"))
        self.seen = []

    def forward(self, inputs):
        self.seen.append(torch.zeros(1).device.type)
        return inputs * self.weight


def created_in_step(plan, batch):
    model = WhereItIs()
    if plan.mode is Mode.TRAIN:
        step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.mse_loss, plan)
    else:
        step = InferStep(model, plan)
    step.forward(batch)
    return model.seen


@pytest.mark.parametrize("mode", list(Mode))
def test_the_step_creates_on_its_device_when_the_plan_says_so(mode):
    batch = (torch.ones(2, device="meta"), torch.ones(2, device="meta"))
    assert created_in_step(StepPlan(mode, "meta", create_on_device=True), batch) == ["meta"]
    assert created_in_step(StepPlan(mode, "meta"), batch) == ["cpu"]
    assert torch.zeros(1).device.type == "cpu"


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_the_exported_step_creates_on_its_device(mode):
    _, names = exported({"step.create_on_device": True}, mode)
    model = WhereItIs()
    batch = torch.ones(2, device="meta")
    if mode == "infer":
        names["infer_step"](model)(batch)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        names["train_step"](model, optimizer, nn.functional.mse_loss)((batch, batch))
    assert model.seen == ["meta"]
