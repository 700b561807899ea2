"""Batches that are read at once: the same samples, in every loop, wherever that can be proved."""

import copy
import pickle
import sys

import numpy as np
import pytest
import torch
from facts import cpu_facts, loader_facts, profile_facts
from loaders import WAITS_LITTLE, applied, both_ways, exported
from proposals import proposed, reason
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler, random_split

from advisor.errors import RefusedError
from advisor.runtime.tuning import Tuning


class Arrays(Dataset):
    """A tensor and a NumPy array, and no transform."""

    def __init__(self, transform=None):
        self.images = torch.arange(60.0).reshape(20, 3)
        self.labels = np.arange(20, dtype=np.int32)
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        """The sample, as people write it."""
        image, label = self.images[index], torch.tensor(self.labels[index], dtype=torch.long)
        if self.transform is not None:
            image = self.transform(image)
        return image, label


class Named(Arrays):
    def __getitem__(self, i):
        noisy = self.images[i].double()
        return {"image": self.images[i], "noisy": noisy, "of": [torch.as_tensor(self.labels[i])]}


class Bare(Arrays):
    def __getitem__(self, index):
        if self.transform:
            return None
        return self.labels[index]


class WithGaps(Arrays):
    """Some numbers are not numbers."""

    def __init__(self):
        super().__init__()
        self.images[::3] = float("nan")


def flags():
    return TensorDataset(torch.arange(20) % 3 == 0, torch.arange(20) * 1j)


DATASETS = {
    "tensors": lambda: TensorDataset(torch.arange(20.0), torch.eye(20)),
    "flags and complex numbers": flags,
    "of one's own": Arrays,
    "dicts": Named,
    "bare": Bare,
    "not a number": WithGaps,
    "a part": lambda: random_split(Arrays(), [15, 5], torch.Generator().manual_seed(1))[0],
    "a part of a part": lambda: Subset(Subset(flags(), range(3, 18)), [9, 2, 4, 4, 0, -1]),
}
OPTIONS = {
    "in order": lambda data: {},
    "shuffled": lambda data: {"shuffle": True, "drop_last": True},
    "weighted": lambda data: {"sampler": WeightedRandomSampler(range(1, len(data) + 1), 11)},
    "workers": lambda data: {"shuffle": True, "num_workers": 2, "persistent_workers": True},
}


def seeded_epochs(loader):
    torch.manual_seed(3)
    return [list(loader), list(loader), torch.rand(1)]


def shown(part):
    """A batch in what can be compared: containers, types, shapes and numbers."""
    if isinstance(part, dict):
        return {key: shown(value) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return type(part), [shown(value) for value in part]
    return part.dtype, part.shape, part.stride(), str(part.tolist())


def by_file(recipe_id, value, loader):
    return exported({"data.batched_reads": value})[1]["prepare"](nn.Linear(1, 1), None, loader)[2]


def by_prepare(recipe_id, value, loader):
    return Tuning({"data.batched_reads": value}).prepare(nn.Linear(1, 1), loader)[1]


# Every dataset in every order; the other ways to have the setting, and workers, which take a second, for one each.
CASES = [
    *((kind, options, applied) for kind in DATASETS for options in OPTIONS if options != "workers"),
    *(("of one's own", "shuffled", change) for change in (by_prepare, by_file)),
    ("dicts", "workers", applied),
    ("a part", "workers", by_file),
]


@pytest.mark.parametrize(("kind", "options", "change"), CASES)
def test_the_same_batches_in_the_same_order_and_the_same_random_numbers(kind, options, change):
    data = DATASETS[kind]()
    loader = DataLoader(data, batch_size=4, **OPTIONS[options](data))
    changed = change("batched_reads", True, loader)
    assert changed.dataset is data
    assert shown(seeded_epochs(changed)) == shown(seeded_epochs(loader))
    assert hasattr(iter(changed)._dataset, "__getitems__")
    assert not hasattr(TensorDataset, "__getitems__")


def test_the_samples_are_read_once_a_batch():
    calls = []

    def see(frame, event, _):
        if event == "call" and frame.f_code is Arrays.__getitem__.__code__:
            calls.append(frame.f_locals["index"].tolist())

    loader = applied("batched_reads", True, DataLoader(Arrays(), batch_size=10))
    before = sys.getprofile()
    sys.setprofile(see)
    try:
        batches = list(loader)
    finally:
        sys.setprofile(before)
    assert len(batches) == 2
    assert calls == [list(range(10)), list(range(10, 20))]


@both_ways
def test_code_that_is_changed_while_the_loader_lives_is_read_anew(change, monkeypatch):
    loader = change("batched_reads", True, DataLoader(Bare(), batch_size=4))
    assert next(iter(loader)).tolist() == [0, 1, 2, 3]
    monkeypatch.setattr(Bare, "__getitem__", lambda self, index: self.images[index].sum())
    assert next(iter(loader)).tolist() == [3, 12, 21, 30]


@both_ways
def test_a_change_of_the_dataset_counts_from_the_next_batch_on(change):
    data = Arrays()
    loader = change("batched_reads", True, DataLoader(data, batch_size=4))
    batches = iter(loader)
    next(batches)
    data.images = -data.images
    assert next(batches)[0][0].tolist() == [-12, -13, -14]
    data.transform = lambda image: image + 100
    assert next(batches)[0][0].tolist() == [76, 75, 74]
    loader.dataset.transform = None
    assert data.transform is None
    data.labels = list(range(20))
    assert next(batches)[1].tolist() == [12, 13, 14, 15]


def test_the_dataset_stays_what_it_is_to_its_owner():
    data = Arrays()
    given = DataLoader(data, batch_size=4)
    loader = applied("batched_reads", True, given)
    batches = iter(loader)
    assert loader.dataset is data
    assert loader.collate_fn is given.collate_fn
    assert len(loader) == 5
    assert not hasattr(data, "__getitems__")
    assert len(list(batches)) == 5


def test_the_dataset_that_workers_read_may_be_copied_and_sent():
    data = Arrays()
    read = iter(applied("batched_reads", True, DataLoader(data, batch_size=4)))._dataset
    assert isinstance(read, Arrays)
    for copied in (copy.copy(read), copy.deepcopy(read), pickle.loads(pickle.dumps(read))):
        copied.images = -data.images
        assert copied.__getitems__([1]).batch[0].tolist() == [[-3, -4, -5]]
    assert data.images.min() == 0


@both_ways
def test_a_dataset_that_the_owner_puts_in_its_place_is_read(change):
    """As a curriculum does between two epochs."""
    loader = change("batched_reads", True, DataLoader(Bare(), batch_size=4))
    list(loader)
    other = Bare()
    other.labels = other.labels + 100
    object.__setattr__(loader, "dataset", other)
    assert next(iter(loader)).tolist() == [100, 101, 102, 103]
    object.__setattr__(loader, "dataset", Random())
    assert next(iter(loader)).shape == (4, 3)


@pytest.mark.parametrize("lives_on", [False, True])
@pytest.mark.parametrize("of_owner", [False, True])
def test_workers_that_come_before_or_after_read_at_once(of_owner, lives_on):
    options = {"num_workers": 1, "persistent_workers": lives_on}
    plain = DataLoader(Arrays(), batch_size=4, shuffle=True, **(options if of_owner else {}))
    changed = applied("batched_reads", True, plain)
    if not of_owner:
        changed = applied("num_workers", 1, changed)
        if lives_on:
            changed = applied("persistent_workers", True, changed)
    assert shown(seeded_epochs(changed)) == shown(seeded_epochs(plain))
    assert changed.num_workers == 1
    assert hasattr(iter(changed)._dataset, "__getitems__")


@pytest.mark.parametrize("lives_on", [False, True])
def test_loaders_that_are_read_side_by_side_shuffle_as_without_workers(lives_on):
    def made():
        return [DataLoader(Arrays(), batch_size=4, shuffle=True) for _ in range(2)]

    settings = {"data.batched_reads": True, "data.num_workers": 1, "data.persistent_workers": lives_on}
    _, *changed = Tuning(settings).prepare(nn.Linear(1, 1), *made())
    found = []
    for loaders in (made(), changed):
        torch.manual_seed(3)
        found.append(shown([list(zip(*loaders, strict=True)), torch.rand(1)]))
    assert found[0] == found[1]


def test_workers_that_are_made_to_end_draw_as_their_owners_did():
    plain = DataLoader(Arrays(), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)
    changed = applied("persistent_workers", False, applied("batched_reads", True, plain))
    assert shown(seeded_epochs(changed)) == shown(seeded_epochs(plain))


def test_a_loader_that_accelerate_would_build_anew_is_left_as_it_is():
    pytest.importorskip("accelerate").Accelerator(cpu=True)
    with pytest.raises(RefusedError, match="prepare it with Accelerate first"):
        applied("batched_reads", True, DataLoader(Arrays(), batch_size=4))


def test_applied_again_it_is_the_same_loader():
    loader = applied("batched_reads", True, DataLoader(Arrays(), batch_size=4))
    assert applied("batched_reads", True, loader) is loader


class Random(Arrays):
    def __getitem__(self, index):
        return self.images[index] + torch.rand(3)


class ByName(Arrays):
    def __getitem__(self, index):
        return self.images[self.labels[index]]


class Window(Arrays):
    def __getitem__(self, index):
        return self.images[index : index + 2]


class Branching(Arrays):
    def __getitem__(self, index):
        if index > 3:
            return self.images[index]
        return self.images[0]


class Else(Arrays):
    def __getitem__(self, index):
        if self.transform is None:
            return self.images[index] * 2
        return self.images[index]


class Cached(Arrays):
    @property
    def samples(self):
        raise AssertionError

    @samples.setter
    def samples(self, value):
        raise AssertionError

    def __getitem__(self, index):
        return self.samples[index]


class Listed(Arrays):
    def __init__(self):
        super().__init__()
        self.labels = list(range(20))


class Texts(Arrays):
    def __init__(self):
        super().__init__()
        self.labels = np.array(["a"] * 20)


class Empty(Arrays):
    def __len__(self):
        return 0


def decorated(function):
    def read(self, index):
        return function(self, index)

    return read


class Decorated(Arrays):
    @decorated
    def __getitem__(self, index):
        return self.images[index]


class ReadsAhead(Arrays):
    def __getitems__(self, indices):
        return [(image + 100, label) for image, label in map(self.__getitem__, indices)]


class WithUnlabelled(DataLoader):
    """Yields batches of two datasets side by side."""

    def __init__(self, data, unlabelled, **options):
        super().__init__(data, **options)
        self.unlabelled = DataLoader(unlabelled, **options)

    def __iter__(self):
        return zip(super().__iter__(), self.unlabelled, strict=True)


MORE = "does more in its __getitem__"
REFUSED = {
    "random": (Random, MORE),
    "by another array": (ByName, MORE),
    "a window": (Window, MORE),
    "a branch": (Branching, MORE),
    "run where there is no transform": (Else, MORE),
    "a transform": (lambda: Arrays(torch.neg), MORE),
    "decorated": (Decorated, MORE),
    "a property": (Cached, MORE),
    "a list": (Listed, "Listed.labels is neither a plain tensor nor a NumPy array"),
    "texts": (Texts, "Texts.labels is neither"),
    "a part of it": (lambda: Subset(Random(), [1, 2]), MORE),
    "a part of what reads ahead": (lambda: Subset(ReadsAhead(), [1, 2]), "reads batches at once itself"),
    "nothing": (Empty, "no samples"),
    "trained inputs": (lambda: TensorDataset(torch.ones(4, requires_grad=True)), "special kind"),
    "sparse": (lambda: TensorDataset(torch.eye(4).to_sparse()), "special kind"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_proved_is_left_as_it_is(kind):
    make, expected = REFUSED[kind]
    with pytest.raises(RefusedError, match=expected):
        applied("batched_reads", True, DataLoader(make(), batch_size=2))
    loader = DataLoader(make(), batch_size=2)
    with pytest.warns(UserWarning, match=expected):
        assert by_file("batched_reads", True, loader) is loader


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"batch_size": None}, "does not form batches"),
        ({"collate_fn": lambda samples: samples}, "collate_fn of its own"),
    ],
)
def test_loaders_that_form_batches_in_another_way_are_left_as_they_are(options, expected):
    with pytest.raises(RefusedError, match=expected):
        applied("batched_reads", True, DataLoader(Arrays(), **options))


def test_a_loader_of_two_datasets_keeps_both():
    with pytest.raises(RefusedError, match="holds another one"):
        applied("batched_reads", True, WithUnlabelled(Arrays(), Named(), batch_size=4))


class Twice(torch.utils.data.Sampler):
    """Gives two numbers where one is meant: each sample is two."""

    def __iter__(self):
        return iter([[1, 2], [3, 4], [5, 6]])


def test_numbers_of_another_form_are_read_one_by_one():
    loader = DataLoader(Arrays(), batch_size=3, sampler=Twice())
    changed = applied("batched_reads", True, loader)
    assert isinstance(iter(changed)._dataset.__getitems__([[1, 2]]), list)
    assert shown(list(changed)) == shown(list(loader))


def test_an_error_of_the_dataset_is_its_own():
    loader = applied("batched_reads", True, DataLoader(Arrays(), batch_size=3, sampler=[1, 50]))
    with pytest.raises(IndexError, match="50"):
        list(loader)


def test_it_is_proposed_where_batches_take_time_and_can_be_read_at_once():
    at_once = loader_facts(batched_reads_problem="")
    assert proposed("batched_reads", cpu_facts(loader=at_once)) == [True]
    assert proposed("batched_reads", cpu_facts(loader=at_once, profile=profile_facts())) == [True]
    assert "0.2 % of the step" in reason("batched_reads", cpu_facts(loader=at_once, profile=WAITS_LITTLE))
    assert "not known" in reason("batched_reads", cpu_facts(loader=loader_facts()))
    assert "DataLoader" in reason("batched_reads", cpu_facts())
