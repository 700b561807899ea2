"""What a trial sees of its data, without disturbing it, and whether that is what the baseline saw."""

from __future__ import annotations

import itertools
import random
import re
from collections import namedtuple
from dataclasses import dataclass, replace

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, TensorDataset

from advisor.errors import RefusedError, TargetError
from advisor.experiment.judging.data import compare_data, widened
from advisor.experiment.judging.numerics import compare_numerics
from advisor.portable.device_loader import DeviceLoader
from advisor.portable.plan import StepPlan
from advisor.recipe.rebuild import loader_with, loader_with_workers
from advisor.records import DataPrint, Mode, Numerics, Outcome, TrialResult
from advisor.trial.measurement.data_prints import pinning_problem, print_of
from advisor.trial.measurement.draws import (
    check_batch_size,
    check_batches,
    first_batches,
    notes_on_data,
    print_of_data,
    side_effects_undone,
    state_problem,
)
from advisor.trial.measurement.epochs import check_epochs
from advisor.trial.measurement.feed import Feed

PLAN = StepPlan(Mode.TRAIN, "cpu")
SEED = 5


class Images(Dataset):
    """Images that are augmented by the generators that people use, and labels that are not."""

    def __init__(self, augment=True):
        self.augment = augment
        self.calls = 0

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self.calls += 1
        noise = torch.rand(3) + random.random() if self.augment else torch.zeros(3)
        return noise + index, index


def plain(**options):
    return DataLoader(Images(augment=False), batch_size=4, **options)


def augmented(**options):
    return DataLoader(Images(), batch_size=4, **options)


def seen(loader, *, twice=True, steps=4):
    """What a trial reports of its data."""
    batches = first_batches(loader, SEED, 5, plan=PLAN)
    data = print_of_data(loader, batches, SEED, PLAN, twice=twice)
    feed = Feed(loader, SEED)
    for _ in range(steps):
        feed.next()
    return replace(data, fed=feed.prints)


def difference(new, old):
    return compare_data(seen(new, twice=False), seen(old))


# --- the same data --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        plain,
        augmented,
        lambda **o: plain(shuffle=True, **o),
        lambda **o: augmented(shuffle=True, generator=torch.Generator().manual_seed(1), **o),
        lambda **o: DataLoader(Images(), batch_size=4, sampler=RandomSampler(Images(), num_samples=30), **o),
        lambda **o: DataLoader(Images(), batch_size=None, **o),
    ],
)
def test_workers_change_nothing_of_the_data_but_augmentation(make):
    assert difference(loader_with(make(), num_workers=1), make()) is None


def test_what_is_random_is_known_and_told():
    data = seen(augmented(shuffle=True))
    assert (data.random, data.loose) == (("0",), ())
    assert notes_on_data(data) == [
        "augmentation draws batch[0] at random, so its values are not compared when a loader is changed"
    ]
    assert seen(plain(shuffle=True)).random == ()
    assert notes_on_data(seen(plain())) == notes_on_data(None) == []


class Cropped(Images):
    def __getitem__(self, index):
        return torch.ones(random.randint(1, 50)), index


def test_shapes_that_are_random_are_not_compared():
    data = seen(DataLoader(Cropped(), batch_size=1))
    assert data.loose == ("0",)
    other = seen(DataLoader(Cropped(), batch_size=1), twice=False)
    assert compare_data(replace(other, probed=other.probed[::-1]), replace(data, fed=())).text.endswith("another order")


# --- other data -----------------------------------------------------------------------------------------------


class Sevens(DataLoader):
    def __iter__(self):
        return ([images * 0 + 7, labels] for images, labels in super().__iter__())


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(60.0))


class PerWorker(Images):
    """Its contents depend on the process that reads them."""

    def __getitem__(self, index):
        self.calls += 1
        return torch.tensor(float(self.calls)), index


DIFFERENT = {
    "contents": (lambda: Sevens(Images(False), batch_size=4), plain, "0 of batch 1 has other contents"),
    "contents of what is not random": (
        lambda: DataLoader(TensorDataset(torch.rand(40, 3), torch.zeros(40).long()), batch_size=4),
        augmented,
        "1 of batch 1 has other contents",
    ),
    "order": (lambda: plain(sampler=[*range(4, 40), *range(4)]), plain, "come in another order"),
    "order, augmented": (lambda: augmented(sampler=[*range(4, 40), *range(4)]), augmented, "come in another order"),
    "order within a batch": (lambda: plain(sampler=[1, 0, *range(2, 40)]), plain, "has other contents"),
    "sizes": (lambda: DataLoader(Images(False), batch_size=2), plain, r"0 of batch 1 is float32\[2, 3\] in place of"),
    "types": (
        lambda: DataLoader(TensorDataset(torch.zeros(40, 3), torch.arange(40).int()), batch_size=4),
        augmented,
        "1 of batch 1 is a int32 in place of a int64",
    ),
    "parts": (lambda: plain(collate_fn=lambda s: [torch.stack([x for x, _ in s])]), plain, "1 of batch 1 is missing"),
    "repeats": (
        lambda: DataLoader(Stream(), batch_size=4, num_workers=2),
        lambda: DataLoader(Stream(), batch_size=4),
        "batch 2 repeats an earlier one: every worker yields all samples",
    ),
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_other_data_is_told_apart(kind):
    new, old, text = DIFFERENT[kind]
    found = difference(new(), old())
    assert found is not None
    assert not found.rounded
    assert re.search(text, found.text), found.text


def result(data, **changes):
    return TrialResult(Outcome.MEASURED, losses=(1.0, 0.5), outputs=(3.0, 1.0, 2.0), batch_size=4, data=data, **changes)


def test_numerics_are_exact_only_where_the_data_were_the_same():
    old, same, other = seen(plain()), seen(plain(num_workers=1), twice=False), seen(plain(shuffle=True), twice=False)
    assert compare_numerics(result(same), result(old), Numerics.EXACT).measured is Numerics.EXACT
    found = compare_numerics(result(other), result(old), Numerics.EXACT)
    assert (found.measured, found.worse_than_declared) == (Numerics.CHANGED, True)
    assert "batch" in found.text
    assert compare_numerics(result(None), result(old), Numerics.EXACT).measured is Numerics.EXACT


def test_rounded_data_are_close():
    images = torch.rand(40, 300)
    old, new = (seen(DataLoader(TensorDataset(part), batch_size=4)) for part in (images, images * (1 + 2**-20)))
    found = compare_numerics(result(new), result(old), Numerics.EXACT)
    assert found.measured is Numerics.CLOSE
    assert "rounding" in found.text
    half = seen(DataLoader(TensorDataset(images.bfloat16()), batch_size=4))
    assert compare_data(half, old).rounded


def test_what_varies_between_runs_of_the_baseline_is_no_evidence():
    old, again, new = (seen(plain(shuffle=turn), twice=False) for turn in (False, True, True))
    assert compare_data(new, old) is not None
    assert compare_data(new, widened(old, [again, None])) is None
    assert widened(None, [again]) is None


def test_what_a_worker_counts_for_itself_is_seen():
    found = difference(DataLoader(PerWorker(), batch_size=4, num_workers=2), DataLoader(PerWorker(), batch_size=4))
    assert found is not None
    assert "loop's first" in found.text


def test_workers_that_hand_out_batches_in_any_order_are_not_compared_by_it():
    feed = Feed(plain(num_workers=2, in_order=False), SEED)
    feed.next()
    assert feed.prints == ()
    assert Feed(torch.ones(2), SEED).prints == ()


def test_a_loader_that_moves_batches_is_seen_through():
    feed = Feed(DeviceLoader(plain(), torch.device("cpu"), lambda batch: batch, ahead=True), SEED)
    feed.next()
    assert feed.prints == (print_of(next(iter(plain()))),)


# --- prints ---------------------------------------------------------------------------------------------------


@dataclass
class Pair:
    left: object
    right: object


class Graph:
    def __init__(self, x):
        self.x, self.name = x, "graph"


Named = namedtuple("Named", "first second")


def test_batches_of_any_class_have_prints():
    x = torch.arange(6.0)
    batches = [
        Pair(x, [x, {"mask": x > 2}]),
        Named(x, "text"),
        Graph(x),
        {"ids": x.long(), "text": ["a", "b"]},
        x,
        (
            x.to_sparse(),
            x.bfloat16(),
            torch.tensor(1.0),
            torch.zeros(0, 2),
            x.numpy(),
            None,
            torch.view_as_complex(torch.ones(3, 2)),
        ),
        torch.nn.utils.rnn.pack_sequence([x, x[:2]]),
    ]
    for batch in batches:
        assert print_of(batch) == print_of(batch)
    places = [part.place for part in print_of(batches[0]).parts]
    assert places == ["batch", "left", "right", "right.0", "right.1", "right.1.mask"]
    assert print_of(Graph(x)) != print_of(Graph(x + 1))
    assert print_of(Named(x, "a")) != print_of(Named(x, "b"))
    assert print_of([x]) == print_of((x,))  # as pinning makes of it
    assert print_of(Pair(x, 1)) != print_of(Named(x, 1))


def test_a_print_of_a_large_batch_is_quick_and_sees_an_exchange_of_samples():
    images = torch.rand(64, 3, 224, 224)
    swapped = images[torch.randperm(64, generator=torch.Generator().manual_seed(0))]
    assert print_of(images) == print_of(images.clone())
    assert print_of(images) != print_of(swapped)
    assert print_of(images.contiguous(memory_format=torch.channels_last)) == print_of(images)


class SelfPinning(Graph):
    def pin_memory(self):
        return self


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        ([torch.ones(2)], ""),
        ({"x": (torch.ones(2), 3)}, ""),
        (SelfPinning(torch.ones(2)), ""),
        (["text"], ""),
        (Graph(torch.ones(2)), "a batch is a Graph, whose tensors pin_memory does not find"),
        (Pair(torch.ones(2), 1), "a batch is a Pair"),
    ],
)
def test_batches_that_pinning_would_not_reach(batch, problem):
    assert problem in pinning_problem(batch)
    assert bool(problem) == bool(pinning_problem(batch))


# --- drawing --------------------------------------------------------------------------------------------------


class Stateful(Sampler):
    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        return iter(range(self.epoch, 20))

    def __len__(self):
        return 19


class Opening(Images):
    file = None
    rng = random.Random(3)  # of the class: shared

    def __init__(self):
        super().__init__()
        self.own = random.Random(4)

    def __getitem__(self, index):
        self.file = self.file or object()
        self.calls += 1
        return torch.tensor(self.own.random()), index


def test_drawing_leaves_everything_as_it_was():
    generator = torch.Generator().manual_seed(2)
    dataset, sampler = Opening(), Stateful()
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, generator=generator)
    random.seed(1)
    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate(), generator.get_state(), dataset.own.getstate()
    first = first_batches(loader, SEED, 3)
    again = first_batches(loader, SEED, 3)
    print_of_data(loader, first, SEED, PLAN, twice=True)
    after = torch.get_rng_state(), random.getstate(), generator.get_state(), dataset.own.getstate()
    assert list(map(print_of, first)) == list(map(print_of, again))
    assert torch.equal(before[0], after[0])
    assert before[1] == after[1]
    assert torch.equal(before[2], after[2])
    assert before[3] == after[3]
    assert (sampler.epoch, dataset.calls, dataset.file) == (0, 0, None)  # workers open the file for themselves


def test_what_fails_is_taken_back_too():
    dataset = Failing()
    with pytest.raises(TargetError), side_effects_undone(DataLoader(dataset)):
        Feed(DataLoader(dataset, batch_size=10)).next()
    assert dataset.calls == 0


class InWorkersOnly(Images):
    def __getitem__(self, index):
        return torch.utils.data.get_worker_info().id + torch.zeros(2), index


def test_a_dataset_that_needs_a_worker_gets_one():
    batches = first_batches(DataLoader(InWorkersOnly(), batch_size=4, num_workers=2), SEED, 2)
    assert [labels.tolist() for _, labels in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_an_endless_loader_is_drawn_from_as_any():
    class Forever(IterableDataset):
        def __iter__(self):
            return itertools.repeat(torch.ones(2))

    assert len(first_batches(DataLoader(Forever(), batch_size=3), SEED, 4)) == 4


class SizesItsOwn(DataLoader):
    def __iter__(self):
        return (torch.zeros(4) for _ in range(5))


def test_a_batch_size_that_a_class_does_not_heed_is_refused():
    with pytest.raises(RefusedError, match="SizesItsOwn reads its samples in its own way"):
        check_batch_size(loader_with(SizesItsOwn(Images(), batch_size=4), batch_size=8))
    check_batch_size(loader_with(Sevens(Images(), batch_size=4), batch_size=8))
    check_batch_size(plain())
    check_batch_size(torch.ones(2))


# --- bad input ------------------------------------------------------------------------------------------------


class Failing(Images):
    def __getitem__(self, index):
        if index == 9:
            raise KeyError("no such image")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_fails_says_at_which_batch(workers):
    loader = DataLoader(Failing(), batch_size=4, num_workers=workers)
    message = r"^the DataLoader failed at batch 3: KeyError: 'no such image'$"
    with pytest.raises(TargetError, match=message) as error:
        first_batches(loader, SEED, 5)
    assert "no such image" in error.value.details
    feed = Feed(loader, SEED)
    feed.next()
    feed.next()
    with pytest.raises(TargetError, match=message):
        feed.next()


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "the DataLoader yields no batch."),
        ([[]], r"batch 1 of the DataLoader is empty \(\[\]\)."),
        ([{"x": torch.ones(1)}, {}], r"batch 2 of the DataLoader is empty \(\{\}\)."),
        ([None], r"batch 1 of the DataLoader is empty \(None\)."),
        ([(torch.zeros(0, 4), torch.zeros(0))], r"holds no sample: float32\[0, 4\], float32\[0\]."),
    ],
)
def test_batches_that_nothing_can_be_run_on(batches, message):
    with pytest.raises(TargetError, match=message):
        check_batches(batches, of_loader=True)


def test_batches_that_are_no_tensors_or_hold_some_empty_ones_are_fine():
    check_batches([["a text"], (torch.ones(2, 3), torch.zeros(0, 4))], of_loader=True)
    with pytest.raises(TargetError, match="the batch holds no sample"):
        check_batches([torch.zeros(0, 3)], of_loader=False)


class Meddling(Images):
    def __init__(self, meddle):
        super().__init__()
        self.meddle = meddle

    def __getitem__(self, index):
        self.meddle(index)
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("meddle", "named"),
    [
        (lambda index: None, ""),
        (torch.manual_seed, "random seed"),
        (random.seed, "random seed"),
        (lambda index: torch.set_grad_enabled(False), "gradient mode"),
        (lambda index: torch.set_default_dtype(torch.float64), "default type"),
    ],
)
def test_a_dataset_that_meddles_with_the_program_is_found(meddle, named):
    loader = DataLoader(Meddling(meddle), batch_size=2, shuffle=True)
    first_batches(loader, SEED, 2)
    problem = state_problem(loader)
    assert (torch.is_grad_enabled(), torch.get_default_dtype()) == (True, torch.float32)
    assert named in problem
    assert bool(problem) == bool(named)


def test_a_print_survives_the_journal():
    data = seen(augmented())
    assert msgspec.json.decode(msgspec.json.encode(data), type=DataPrint) == data


class KeepsItsPlace(Sampler):
    """Goes on where it stopped, as samplers do that training is resumed with."""

    def __init__(self):
        self.place = 0

    def __len__(self):
        return 4000

    def __iter__(self):
        for _ in range(len(self)):
            self.place = (self.place + 1) % 4000
            yield self.place


class TellsTheDataset(Sampler):
    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return 24

    def __iter__(self):
        self.dataset.epoch += 1
        return iter(range(24))


class ByEpoch(Dataset):
    epoch = 0

    def __init__(self):
        self.epoch = 0

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor(float(index + 100 * self.epoch))


class InOneGo(Sampler):
    """Its order is by the seed of the loop: nothing that workers would change."""

    def __len__(self):
        return 24

    def __iter__(self):
        return iter(torch.randperm(24).tolist())


@pytest.mark.process
def test_an_order_that_workers_would_change_ends_the_trial():
    dataset = ByEpoch()
    told = DataLoader(dataset, batch_size=4, sampler=TellsTheDataset(dataset))
    with pytest.raises(RefusedError, match="changes the dataset as an epoch begins"):
        check_epochs(told, loader_with_workers(told, 1), 0)
    assert dataset.epoch == 0
    long = DataLoader(range(4000), batch_size=4, sampler=KeepsItsPlace())
    with pytest.raises(RefusedError, match="KeepsItsPlace keeps count while it is read"):
        check_epochs(long, loader_with_workers(long, 1), 0)
    assert long.sampler.place == 0
    for same in (DataLoader(ByEpoch(), 4, sampler=InOneGo()), DataLoader(ByEpoch(), 4, shuffle=True)):
        check_epochs(same, loader_with_workers(same, 2), 0)
