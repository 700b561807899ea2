"""A loader that a setting changes stays what its owner made: its class, its samples, its order; or it is left alone."""

import pickle
import warnings
import weakref

import pytest
import torch
from loader_classes import Counted, Endless, Numbers, Pairs, Sevens, Stream, Wrapper, contents
from loaders import applied, both_ways, by_code, exported
from proposals import CATALOG
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    SequentialSampler,
    Subset,
)

from advisor.errors import RefusedError
from advisor.recipe.rebuild import loader_with
from advisor.step.tuning import Tuning
from advisor.trial.measurement.data_prints import fingerprint_of


def values_of(recipe_id):
    values = {"num_workers": 1, "persistent_workers": False, "prefetch": 4, "pin_memory": False, "batch_size": 4}
    return values[recipe_id]


KINDS = {
    "work of its own": lambda **options: Sevens(Numbers(), batch_size=4, **options),
    "its own iterator": lambda **options: Endless(Numbers(), batch_size=4, **options),
    "a wrapper": lambda **options: Wrapper(DataLoader(Numbers(), batch_size=4, **options)),
}


@both_ways
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe_id", ["num_workers", "pin_memory"])
def test_a_loader_of_any_class_yields_the_same_batches(change, kind, recipe_id):
    loader = KINDS[kind]()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        changed = change(recipe_id, values_of(recipe_id), loader)
    assert type(changed) is type(loader)
    assert changed is not loader
    assert changed.num_workers == (recipe_id == "num_workers")
    assert contents(changed) == contents(loader)
    assert len(changed) == len(loader)


@both_ways
def test_methods_and_attributes_of_a_class_go_on_working(change):
    loader = Sevens(Numbers(), batch_size=4)
    changed = change("num_workers", 1, loader)
    changed.set_epoch(9)
    changed.scale = 1.0
    assert (changed.epoch, loader.epoch) == (9, 3)
    assert changed.collate_fn.__self__ is changed
    assert next(iter(changed))[0].tolist() == [1.0] * 4


@both_ways
def test_a_collate_function_of_the_loaders_own_is_no_reason_to_go_on_without_workers(change):
    """The loader that it belongs to keeps count of its epochs."""
    changed = change("num_workers", 1, Sevens(Numbers(), batch_size=4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert contents(changed) == contents(Sevens(Numbers(), batch_size=4))


def test_prepare_keeps_the_class():
    loader = Sevens(Numbers(), batch_size=4)
    _, back = Tuning({"data.num_workers": 1}).prepare(nn.Linear(1, 1), loader)
    assert (type(back), back.num_workers) == (Sevens, 1)
    assert contents(back) == contents(loader)


@pytest.mark.parametrize("loader", [Sevens(Numbers(), batch_size=4), DataLoader(Numbers(), batch_size=4)])
def test_everything_else_is_the_same_object(loader):
    changed = loader_with(loader, num_workers=2)
    for name in ("dataset", "sampler", "batch_sampler", "generator", "worker_init_fn", "timeout", "drop_last"):
        assert getattr(changed, name) is getattr(loader, name), name


def first_samples(loader, epochs=3):
    """The samples of each epoch, and a random number after it."""
    torch.manual_seed(0)
    return [(torch.cat([inputs for inputs, _ in loader]).tolist(), float(torch.rand(()))) for _ in range(epochs)]


def shuffled(**options):
    return DataLoader(Numbers(), batch_size=8, shuffle=True, **options)


@pytest.mark.process
@pytest.mark.parametrize(("change", "generator"), [(applied, None), (by_code, 1)])
def test_workers_that_live_on_shuffle_every_epoch_as_before(change, generator):
    made = [torch.Generator().manual_seed(generator) if generator else None for _ in range(4)]
    expected = first_samples(shuffled(generator=made[0]))
    assert first_samples(change("num_workers", 1, shuffled(generator=made[1]))) == expected
    several = change("prefetch", 4, change("num_workers", 1, shuffled(generator=made[2])))
    assert first_samples(several) == expected
    kept = change("persistent_workers", True, shuffled(generator=made[3], num_workers=1))
    assert first_samples(kept) == expected


class CountsEpochs:
    """Decides on the order by how often it was iterated over, as the call of ``__iter__`` counts."""

    def __init__(self, batches):
        self.epoch, self.batches = 0, batches

    def __len__(self):
        return 6 if self.batches else 24

    def __iter__(self):
        self.epoch += 1
        order = torch.randperm(24, generator=torch.Generator().manual_seed(self.epoch))
        order = order if self.epoch % 2 else order[torch.randperm(24)]  # of PyTorch's own generator, too
        return iter((order.view(-1, 4) if self.batches else order).tolist())


@pytest.mark.process
@pytest.mark.parametrize(("change", "workers"), [(applied, 1), (by_code, 2)])
@pytest.mark.parametrize("kind", ["batches", "samples", "whole"])
def test_a_sampler_that_counts_epochs_counts_as_before(change, kind, workers):
    def made():
        sampler = CountsEpochs(kind == "batches")
        options = {"batches": {"batch_sampler": sampler}, "samples": {"sampler": sampler, "batch_size": 4}}
        return DataLoader(Pairs(), **options.get(kind, {"sampler": sampler, "batch_size": None}))

    expected = first_samples(made())
    assert expected[0] != expected[1] != expected[2]
    assert first_samples(change("num_workers", workers, made())) == expected
    ended = change("persistent_workers", False, change("num_workers", workers, made()))
    assert first_samples(ended) == expected


class Scaled(Numbers):
    """Samples that a loop changes between epochs: by an attribute, in its tensor, and by their order."""

    def __init__(self):
        self.files = [(f"{number}.jpg", number) for number in range(9000)]
        self.options, self.weights, self.order = {"scale": 1.0}, torch.ones(24), list(range(24))
        self.later = [(f"{number}.png", number) for number in range(9000)]

    def __getitem__(self, index):
        at = self.order[index]
        return self.weights[at : at + 1] * self.options["scale"] * at, at % 4


def change_scale(dataset):
    dataset.options["scale"] += 1.0


def change_weights(dataset):
    dataset.weights[3:9] *= 2.0


def change_order(dataset):
    dataset.order.reverse()


@pytest.mark.process
@pytest.mark.parametrize("between", [change_scale, change_weights, change_order])
def test_workers_that_live_on_hear_what_became_of_the_dataset(between):
    def epochs(loader):
        found = []
        for _ in range(3):
            found.append(contents(loader))
            between(loader.dataset)
        return found

    expected = epochs(DataLoader(Scaled(), batch_size=8))
    assert expected[0] != expected[1]
    assert epochs(applied("num_workers", 1, DataLoader(Scaled(), batch_size=8))) == expected
    assert epochs(applied("persistent_workers", True, DataLoader(Scaled(), batch_size=8, num_workers=1))) == expected


@pytest.mark.process
def test_workers_that_live_on_are_the_same_ones_while_the_dataset_stays():
    loader = applied("num_workers", 1, DataLoader(Subset(Scaled(), range(24)), batch_size=8))
    found = []
    for _ in range(3):
        contents(loader)
        found.append(loader._iterator._workers[0].pid)
    assert len(set(found)) == 1
    next(iter(loader))  # and after an epoch that was left early
    contents(loader)
    assert loader._iterator._workers[0].pid == found[0]


@pytest.mark.process
@both_ways
def test_two_loops_may_read_a_loader_at_a_time(change):
    def pairs(loader):
        torch.manual_seed(0)
        nested = [(one.tolist(), other.tolist()) for one, _ in loader for other, _ in loader]
        zipped = [(one.tolist(), other.tolist()) for (one, _), (other, _) in zip(loader, loader, strict=True)]
        return nested, zipped, float(torch.rand(()))

    expected = pairs(shuffled())
    assert [len(part) for part in expected[:2]] == [9, 3]
    assert pairs(change("num_workers", 1, shuffled())) == expected


@pytest.mark.process
def test_loaders_that_are_read_side_by_side_shuffle_as_before():
    def epochs(*loaders):
        torch.manual_seed(0)
        return [[one.tolist() for batches in zip(*loaders, strict=True) for one, _ in batches] for _ in range(2)]

    expected = epochs(shuffled(), shuffled())
    assert expected[0] != expected[1]
    assert epochs(applied("num_workers", 1, shuffled()), applied("num_workers", 1, shuffled())) == expected


@pytest.mark.process
def test_a_loader_that_lived_on_already_goes_on_as_it_did():
    options = {"num_workers": 1, "persistent_workers": True}
    assert first_samples(applied("prefetch", 4, shuffled(**options))) == first_samples(shuffled(**options))


@pytest.mark.process
def test_such_a_loader_is_freed_with_its_last_user_and_can_be_pickled():
    loader = applied("num_workers", 1, shuffled())
    again = pickle.loads(pickle.dumps(loader))
    assert first_samples(again, 2) == first_samples(shuffled(), 2)
    gone = weakref.ref(loader)
    del loader
    assert gone() is None


def test_a_time_limit_for_workers_goes_with_them():
    loader = DataLoader(Numbers(), batch_size=4, num_workers=1, timeout=30)
    changed = loader_with(loader, num_workers=0)
    assert contents(changed)[0] == [[[0.0], [1.0], [2.0], [3.0]], [0, 1, 2, 3]]


# --- what is refused ------------------------------------------------------------------------------------------


class Fixed(Sevens):
    @property
    def num_workers(self):
        return 0

    @num_workers.setter
    def num_workers(self, value):
        pass


class Generating(DataLoader):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.batches = iter([[torch.ones(4, 1), torch.ones(4)]] * 3)


class ToldOfEpochs(Numbers):
    def set_epoch(self, epoch):
        self.epoch = epoch


class Planned(BatchSampler):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.plan = list(super().__iter__())

    def __iter__(self):
        return iter(self.plan)

    def __len__(self):
        return len(self.plan)


def planned():
    loader = DataLoader(Numbers(), batch_size=4)
    object.__setattr__(loader, "batch_sampler", Planned(range(24), 4, False))
    return loader


class Positioned(SequentialSampler):
    """Tells a checkpoint how far it has been read."""

    position = 0

    def __iter__(self):
        while self.position < 24:
            yield self.position
            self.position += 1
        self.position = 0

    def state_dict(self):
        return {"position": self.position}


REFUSED = {
    "a position": (
        lambda: DataLoader(Numbers(), 4, sampler=Positioned(Numbers())),
        {"data.num_workers": 1},
        r"the sampler's state_dict\(\) tells its position",
    ),
    "a property": (lambda: Fixed(Numbers(), batch_size=4), {"data.num_workers": 2}, "Fixed decides on num_workers"),
    "a count": (lambda: Counted(Numbers(), batch_size=4), {"data.batch_size": 8}, "counts its batches itself"),
    "an iterator": (lambda: Generating(Numbers()), {"data.num_workers": 1}, r"reads from an iterator \(batches\)"),
    "a stream": (lambda: DataLoader(Stream(), batch_size=2), {"data.num_workers": 2}, "every worker would yield all"),
    "a batch sampler": (
        lambda: DataLoader(Numbers(), batch_sampler=BatchSampler(range(24), 4, False)),
        {"data.batch_size": 8},
        "batch sampler of its own",
    ),
    "a plan of batches": (planned, {"data.batch_size": 8}, "Planned forms its batches in its own way"),
    "a repeating sampler": (lambda: Endless(Numbers()), {"data.batch_size": 8}, "batch sampler of its own"),
    "epochs": (
        lambda: DataLoader(ToldOfEpochs(), num_workers=1),
        {"data.persistent_workers": True},
        r"set_epoch\(\), which workers that live on",
    ),
}
every_refusal = pytest.mark.parametrize("kind", REFUSED)


@every_refusal
def test_what_cannot_be_kept_is_refused_with_the_reason(kind):
    make, settings, reason = REFUSED[kind]
    ((key, value),) = settings.items()
    recipe = next(recipe for recipe in CATALOG if recipe.key == key)
    with pytest.raises(RefusedError, match=reason):
        applied(recipe.id, value, make())


@every_refusal
def test_prepare_leaves_such_a_loader_as_it_is_and_says_so(kind):
    make, settings, reason = REFUSED[kind]
    loader = make()
    with pytest.warns(UserWarning, match=rf"data\.\w+: \w+ is left out: .*{reason}") as told:
        _, back = Tuning(settings).prepare(nn.Linear(1, 1), loader)
    assert back is loader
    assert told[0].filename == __file__


@every_refusal
def test_so_does_the_exported_file(kind):
    make, settings, reason = REFUSED[kind]
    loader = make()
    _, names = exported(settings)
    with pytest.warns(UserWarning, match=rf"the loader stays as it is, without \w+=\w+: .*{reason}"):
        back = names["prepare"](nn.Linear(1, 1), None, loader)[2]
    assert back is loader


def test_a_position_that_is_read_ahead_already_or_that_the_loader_keeps_is_no_reason():
    begun = loader_with(DataLoader(Numbers(), 4, sampler=Positioned(Numbers()), num_workers=1), num_workers=2)
    assert begun.num_workers == 2
    keeping = DataLoader(Numbers(), 4, sampler=Positioned(Numbers()))
    keeping.state_dict = dict
    assert loader_with(keeping, num_workers=1).num_workers == 1


@both_ways
@pytest.mark.parametrize("dataset", [ToldOfEpochs(), Subset(ToldOfEpochs(), [0, 1])])
def test_workers_end_with_the_epoch_where_the_dataset_has_to_hear_of_it(change, dataset):
    changed = change("num_workers", 1, DataLoader(dataset))
    assert (changed.num_workers, changed.persistent_workers) == (1, False)


class Unbatched(DataLoader):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.iterator = super().__iter__()


@both_ways
@pytest.mark.parametrize("recipe_id", ["num_workers", "pin_memory"])
def test_a_loader_with_an_iterator_of_its_own_shuffles_as_before(change, recipe_id):
    def made():
        torch.manual_seed(3)
        return Endless(Numbers(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))

    changed = change(recipe_id, values_of(recipe_id), made())
    assert contents(changed) == contents(made())


def test_an_order_that_workers_have_drawn_already_is_kept():
    in_order, shuffled = (Endless(Numbers(), batch_size=4, shuffle=drawn, num_workers=1) for drawn in (False, True))
    assert loader_with(in_order, num_workers=2).num_workers == 2
    only_first = Unbatched(Subset(Numbers(), [0]), batch_size=None, shuffle=True, num_workers=1)
    for drawn in (shuffled, only_first):
        with pytest.raises(RefusedError, match="have drawn the order of samples already"):
            loader_with(drawn, num_workers=2)


def test_a_loader_that_is_being_read_is_not_copied():
    loader = Endless(Numbers(), batch_size=4)
    next(iter(loader))
    with pytest.raises(RefusedError, match="is being read already"):
        loader_with(loader, num_workers=1)


# --- loaders of frameworks ------------------------------------------------------------------------------------


def of_accelerate():
    data_loader = pytest.importorskip("accelerate.data_loader")
    return data_loader.DataLoaderShard(Numbers(), batch_size=4)


def of_timm():
    return pytest.importorskip("timm.data.loader").MultiEpochsDataLoader(Numbers(), batch_size=4)


def of_pyg():
    loader = pytest.importorskip("torch_geometric.loader").DataLoader
    data = pytest.importorskip("torch_geometric.data").Data
    edges = torch.tensor([[0, 1], [1, 0]])
    return loader([data(x=torch.full((2, 3), float(i)), edge_index=edges) for i in range(12)], batch_size=4)


@pytest.mark.process
@pytest.mark.parametrize("make", [of_accelerate, of_timm, of_pyg])
def test_loaders_of_frameworks_are_kept(make):
    loader = make()
    changed = applied("num_workers", 1, loader)
    assert (type(changed), changed.num_workers) == (type(loader), 1)
    assert list(map(fingerprint_of, changed)) == list(map(fingerprint_of, loader))
