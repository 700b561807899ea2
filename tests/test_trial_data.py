"""What a trial sees of its data, without disturbing it, and whether that is what the baseline saw."""

import random
import re
from collections import namedtuple
from dataclasses import dataclass, replace

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset
from trial_data import SEED, Images, Sevens, augmented, plain, seen

from advisor.experiment.judging.data import compare_data, widened
from advisor.experiment.judging.numerics import compare_numerics
from advisor.recipe.rebuild import loader_with
from advisor.records import DataPrint, Numerics, Outcome, TrialResult
from advisor.step.device_loader import DeviceLoader
from advisor.trial.measurement.data_prints import fingerprint_of, pinning_problem
from advisor.trial.measurement.draws import (
    notes_on_data,
)
from advisor.trial.measurement.feed import Feed


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


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(60.0))


class PerWorker(Images):
    """Its contents depend on the process that reads them."""

    def __getitem__(self, index):
        self.calls += 1
        return torch.tensor(float(self.calls)), index


class Shaken:
    """A transform with random numbers of its own, of which each worker gets a copy."""

    def __init__(self):
        self.random = random.Random(3)

    def __call__(self, image):
        return image + self.random.random()


class Transformed(Images):
    def __init__(self):
        super().__init__(augment=False)
        self.transform = [Shaken()]

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return self.transform[0](image), label


def shaken(**options):
    return DataLoader(Transformed(), batch_size=4, **options)


def test_a_generator_deep_inside_a_dataset_is_left_as_it_was():
    loader = shaken()
    state = loader.dataset.transform[0].random.getstate()
    assert seen(loader, steps=0).random == ()
    assert loader.dataset.transform[0].random.getstate() == state


DIFFERENT = {
    "random numbers that each worker draws for itself": (
        lambda: shaken(num_workers=2),
        shaken,
        "0 of batch 2 has other contents",
    ),
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
    assert feed.prints == (fingerprint_of(next(iter(plain()))),)


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
        assert fingerprint_of(batch) == fingerprint_of(batch)
    places = [part.place for part in fingerprint_of(batches[0]).parts]
    assert places == ["batch", "left", "right", "right.0", "right.1", "right.1.mask"]
    assert fingerprint_of(Graph(x)) != fingerprint_of(Graph(x + 1))
    assert fingerprint_of(Named(x, "a")) != fingerprint_of(Named(x, "b"))
    assert fingerprint_of([x]) == fingerprint_of((x,))  # as pinning makes of it
    assert fingerprint_of(Pair(x, 1)) != fingerprint_of(Named(x, 1))


def test_a_print_of_a_large_batch_is_quick_and_sees_an_exchange_of_samples():
    images = torch.rand(64, 3, 224, 224)
    swapped = images[torch.randperm(64, generator=torch.Generator().manual_seed(0))]
    assert fingerprint_of(images) == fingerprint_of(images.clone())
    assert fingerprint_of(images) != fingerprint_of(swapped)
    assert fingerprint_of(images.contiguous(memory_format=torch.channels_last)) == fingerprint_of(images)


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


def test_a_print_survives_the_journal():
    data = seen(augmented())
    assert msgspec.json.decode(msgspec.json.encode(data), type=DataPrint) == data
