"""Drawing a trial's first batches: nothing is left changed, and data that no trial can run on is refused."""

import itertools
import random

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler
from trial_data import PLAN, SEED, Images, Sevens, plain

from advisor.errors import RefusedError, TargetError
from advisor.recipe.rebuild import loader_with, loader_with_workers
from advisor.trial.measurement.data_prints import fingerprint_of
from advisor.trial.measurement.draws import (
    check_batch_size,
    check_batches,
    count_problem,
    fingerprint_of_data,
    first_batches,
    side_effects_undone,
    state_problem,
)
from advisor.trial.measurement.epochs import check_epochs
from advisor.trial.measurement.feed import Feed, form_notes


class Stateful(Sampler):
    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        return iter(range(self.epoch, 20))

    def __len__(self):
        return 19


Pair = tuple[float, int]  # its attributes are those of the class that it stands for


class Opening(Images):
    file = None
    rng = random.Random(3)  # of the class: shared

    def __init__(self):
        super().__init__()
        self.own = random.Random(4)

    def __getitem__(self, index):
        self.file = self.file or object()
        self.calls += 1
        return Pair((torch.tensor(self.own.random()), index))


def test_drawing_leaves_everything_as_it_was():
    generator = torch.Generator().manual_seed(2)
    dataset, sampler = Opening(), Stateful()
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, generator=generator)
    random.seed(1)
    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate(), generator.get_state(), dataset.own.getstate()
    first = first_batches(loader, SEED, 3)
    again = first_batches(loader, SEED, 3)
    fingerprint_of_data(loader, first, SEED, PLAN, twice=True)
    after = torch.get_rng_state(), random.getstate(), generator.get_state(), dataset.own.getstate()
    assert list(map(fingerprint_of, first)) == list(map(fingerprint_of, again))
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


def test_batches_that_change_their_form_are_told():
    pair, named = (torch.ones(2, 3), torch.ones(2)), {"x": torch.ones(2, 3)}
    boxes = [{"boxes": torch.ones(1, 4)}] * 2
    (note,) = form_notes([pair, pair, named])
    assert "the first is (float32[2, 3], float32[2]), and batch 3 is {x: float32[2, 3]};" in note
    assert form_notes([named, {"y": torch.ones(2, 3)}])
    for alike in ([], [pair, (torch.ones(1, 3), torch.ones(1))], [boxes, boxes[:1]], [named, named]):
        assert not form_notes(alike)


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


class Harder(Images):
    """Crops more the more samples it has given; counts the times that it found something in a cache, too."""

    def __init__(self, after):
        super().__init__(augment=True)
        self.after, self.given, self.hits = after, 0, 0

    def __getitem__(self, index):
        self.given += 1
        self.hits += 2
        image, label = super().__getitem__(index)
        return image[: 2 if self.given > self.after else 3], label


class WarmingUp:
    def __init__(self):
        self.calls = 0

    def __call__(self, samples):
        self.calls += 1
        return torch.stack([image for image, _ in samples]) * min(1.0, self.calls / 10)


class Unseeded(Images):
    """Counts its calls, and draws numbers that no seed decides."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image + random.SystemRandom().random(), label


@pytest.mark.parametrize(
    ("loader", "named"),
    [
        (lambda: DataLoader(Images(), batch_size=4, shuffle=True), ""),  # it counts calls, which matter to nothing
        (lambda: DataLoader(Unseeded(), batch_size=4), ""),
        (lambda: DataLoader(Harder(1000), batch_size=4), "Harder.given"),
        (lambda: DataLoader(Images(), batch_size=4, collate_fn=WarmingUp()), "WarmingUp.calls"),
    ],
)
def test_a_count_on_which_samples_depend_is_found_and_left_as_it_was(loader, named):
    made = loader()
    first_batches(made, SEED, 3)
    problem = count_problem(made)
    assert problem.startswith(f"samples depend on {named}, ") if named else not problem
    assert getattr(made.collate_fn, "calls", 0) == made.dataset.calls == 0


class Reader:
    handle = None

    def read(self, index):
        global HANDLES  # noqa: PLW0603 - as datasets keep what they open
        self.handle = self.handle or object()
        HANDLES = HANDLES or object()
        return index


HANDLES = None


class ByReader(Images):
    def __init__(self):
        super().__init__()
        self.readers = [Reader()]

    def __getitem__(self, index):
        return torch.tensor(self.readers[0].read(index))


def test_what_is_opened_deep_inside_or_for_all_is_taken_back_too():
    loader = DataLoader(ByReader(), batch_size=4)
    assert len(first_batches(loader, SEED, 2)) == 2
    assert (vars(loader.dataset.readers[0]), HANDLES) == ({}, None)


class Handle:
    """Looks at its owner as it is closed, as another thread may at any moment."""

    def __init__(self, owner, seen):
        self.owner, self.seen = owner, seen

    def __del__(self):
        self.seen.append(self.owner.augment)


def test_an_object_has_its_attributes_also_while_others_are_taken_back():
    data, seen = Images(), []
    with side_effects_undone(DataLoader(data)):
        data.handle = Handle(data, seen)
    assert seen == [True]


def test_a_program_may_work_in_a_folder_that_is_gone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with side_effects_undone(DataLoader(Images())):
        pass


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
