"""The batches of a trial: the same first ones under every loader setting, then epoch after epoch."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset, get_worker_info

from advisor.errors import TargetError
from advisor.recipe import Components
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.loader import length_of, rebuild
from advisor.step.step import make_step
from advisor.trial.measurement.draws import Feed, probe_batches
from advisor.trial.timed_loop import feed_of, stepper


class Stream(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return iter(torch.arange(self.size).unsqueeze(1))


def loader_of(size, **options):
    return DataLoader(TensorDataset(torch.arange(size)), **{"batch_size": 4, **options})


def test_a_feed_goes_on_epoch_after_epoch_with_its_short_last_batch():
    feed = Feed(loader_of(10))
    assert [len(feed.next()[0]) for _ in range(7)] == [4, 4, 2, 4, 4, 2, 4]
    assert not feed.resident


def test_a_resident_batch_is_given_again_and_again():
    batch = torch.ones(3)
    feed = Feed(batch)
    assert feed.resident
    assert feed.next() is feed.next() is batch
    assert feed.queued_batches == 0


@pytest.mark.parametrize(
    ("plan", "converted"),
    [({}, False), ({"input_dtype": "bfloat16"}, True), ({"memory_format": "channels_last"}, True)],
)
def test_a_resident_batch_is_converted_in_every_step_as_new_ones_would_be(plan, converted):
    seen = []

    class Model(nn.Module):
        def forward(self, images):
            seen.append(images)
            return images

    components = Components(Model(), None, torch.ones(2, 3, 4, 4), StepPlan(Mode.INFER, "cpu", **plan), None)
    feed = feed_of(components, 0)
    assert stepper(make_step(components, None), feed, 1)(3) == 6
    assert feed.next().dtype is torch.float32
    assert feed.next().is_contiguous()
    assert [images is feed.next() for images in seen] == [not converted] * 3
    if plan.get("input_dtype"):
        assert {images.dtype for images in seen} == {torch.bfloat16}
    if plan.get("memory_format"):
        assert all(images.is_contiguous(memory_format=torch.channels_last) for images in seen)


@pytest.mark.parametrize("loader", [loader_of(3, drop_last=True), DataLoader(Stream(0), batch_size=2)])
def test_a_loader_that_yields_nothing_is_the_targets_fault(loader):
    with pytest.raises(TargetError, match="yields no batch") as error:
        Feed(loader).next()
    assert "drop_last" in error.value.hint


class ReadOnce(IterableDataset):
    """A generator made once: a second epoch finds it used up."""

    def __init__(self, size):
        self.rows = iter(torch.arange(size))

    def __iter__(self):
        return self.rows


class FailsLater(Dataset):
    """A dataset that fails from its second epoch on."""

    def __init__(self):
        self.read = 0

    def __len__(self):
        return 2

    def __getitem__(self, index):
        self.read += 1
        if self.read > 2:
            raise OSError("the share is gone")
        return torch.ones(1)


def test_a_loader_that_fails_at_the_first_batch_of_a_later_epoch_is_named_as_such():
    feed = Feed(DataLoader(FailsLater()))
    feed.next(), feed.next()
    with pytest.raises(TargetError, match=r"failed at batch 3: .*the share is gone"):
        feed.next()


def test_a_stream_that_can_be_read_once_only_is_named_as_such():
    feed = Feed(DataLoader(ReadOnce(5), batch_size=2))
    assert [len(feed.next()) for _ in range(3)] == [2, 2, 1]
    with pytest.raises(TargetError, match="nothing after its first 3 batches"):
        feed.next()


class Unsized(Sampler):
    """A sampler whose author left its length out, with what an abstract method raises."""

    def __iter__(self):
        return iter(range(10))

    def __len__(self):
        raise NotImplementedError


UNSIZED = DataLoader(TensorDataset(torch.arange(10)), sampler=Unsized(), num_workers=2)


@pytest.mark.parametrize(
    ("data", "cycle"),
    [
        (torch.zeros(4), 1),
        (loader_of(32), 1),  # without workers a batch takes as long as the next
        (loader_of(32, num_workers=3), 8),
        (loader_of(800, num_workers=3), 3),
        (UNSIZED, 2),  # it does not know how many batches it has
    ],
)
def test_the_cycle_of_a_feed_is_a_short_epoch_or_a_batch_of_each_worker(data, cycle):
    assert Feed(data).cycle(most_steps=20) == cycle


def test_a_loader_may_not_know_how_many_batches_it_has():
    assert [length_of(loader) for loader in (UNSIZED, DataLoader(Stream(5)), loader_of(10))] == [None, None, 3]


def test_batches_that_workers_may_have_ready():
    assert Feed(loader_of(10)).queued_batches == 0
    assert Feed(loader_of(10, num_workers=3)).queued_batches == 6
    assert Feed(loader_of(10, num_workers=2, prefetch_factor=5)).queued_batches == 10


class Noisy(Dataset):
    """Augmented samples, and a file that is opened with the first."""

    file = None

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.file = "open"
        return torch.rand(2) + index


def test_every_trial_draws_the_same_batches_whatever_its_workers():
    loader = DataLoader(Noisy(), batch_size=2, shuffle=True)
    drawn = [probe_batches(one, 3)[:2] for one in (loader, rebuild(loader, num_workers=2), loader)]
    assert all(torch.equal(torch.cat(batches), torch.cat(drawn[0])) for batches in drawn)
    assert not torch.equal(torch.cat(probe_batches(loader, 4)[:2]), torch.cat(drawn[0]))
    assert loader.dataset.file is None  # workers that are forked later open their own


class InWorkers(Noisy):
    def __getitem__(self, index):
        return get_worker_info().id


@pytest.mark.process
def test_a_dataset_that_needs_a_worker_is_read_in_one():
    assert probe_batches(DataLoader(InWorkers(), num_workers=1), 0)[0].tolist() == [0]
    with pytest.raises(TargetError, match="failed at batch 1"):
        probe_batches(DataLoader(InWorkers()), 0)


class Own(DataLoader):
    """A loader that cannot be made anew."""

    def __init__(self, data, secret):
        super().__init__(TensorDataset(data), batch_size=2)


def test_a_loader_that_cannot_be_made_anew_is_read_as_it_is():
    assert len(probe_batches(Own(torch.arange(6), 1), 0)) == 3
    assert len(probe_batches(DataLoader(Stream(10), batch_size=4), 0)) == 3
