from __future__ import annotations

import time
import weakref
from dataclasses import dataclass
from statistics import median

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

import advisor.trial.measurement.clock
from advisor.errors import TargetError
from advisor.portable.loaders import length_of
from advisor.portable.plan import StepPlan
from advisor.recipe import Components
from advisor.records import Block, Mode
from advisor.runtime.step import make_step
from advisor.trial.measurement.clock import (
    FEWEST_BLOCKS,
    BlockTeller,
    StepClock,
    batch_samples,
    block_steps,
    latency_of_calls,
    measure,
    merge_uneven,
    steps_in,
    warm_up,
)
from advisor.trial.measurement.feed import Feed
from advisor.trial.measurement.probe import PROBE_STEPS, probe_batches, probe_inference, probe_training
from advisor.trial.timed_loop import resident_data, stepper

CPU = torch.device("cpu")


class Sleeping:
    """A step of 4 samples that takes these times in turn, and the last for ever."""

    def __init__(self, *seconds, sleep=time.sleep):
        self.seconds = list(seconds)
        self.steps = 0
        self.sleep = sleep

    def __call__(self, steps):
        for _ in range(steps):
            self.sleep(self.seconds[min(self.steps, len(self.seconds) - 1)])
            self.steps += 1
        return 4 * steps


class OwnTime:
    """Time in which nothing but steps takes any: on a busy machine a real one takes longer than it says."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock_of(monkeypatch):
    """A clock, and the step that it times, in a time of their own."""
    own = OwnTime()
    monkeypatch.setattr(advisor.trial.measurement.clock, "time", own)

    def make(*seconds):
        step = Sleeping(*seconds, sleep=own.sleep)
        return StepClock(CPU, step), step

    return make


# --- the clock ------------------------------------------------------------------------------------------------


def test_blocks_are_told_of_as_they_come_but_not_all_of_short_ones(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(advisor.trial.measurement.clock.time, "perf_counter", lambda: now[0])
    told, blocks = [], []
    teller = BlockTeller(told.append)
    for place in range(40):
        blocks.append(Block(1, 4, 0.01 * (place + 1)))
        teller(blocks)
        teller(blocks)
        now[0] += 0.1
    assert told == blocks[::3]


def test_who_listens_is_given_the_blocks_between_two_of_them(clock_of):
    seen = []
    measure(clock_of(0.002)[0], 0.002, 0.05, tell=lambda blocks: seen.append(len(blocks)))
    assert seen == list(range(len(seen)))
    assert len(seen) > FEWEST_BLOCKS


def test_a_block_times_its_steps():
    step = Sleeping(0.004)
    clock = StepClock(CPU, step)
    block = clock.run(5)
    assert (block.steps, block.samples, step.steps) == (5, 20, 5)
    assert 0.02 <= block.seconds < 1.0
    assert block.step_ms >= 4
    assert block.samples_per_s == pytest.approx(20 / block.seconds)


def test_measured_blocks_give_the_percentiles_of_steps(clock_of):
    clock, _ = clock_of(0.002)
    assert clock.percentiles() is None
    assert measure(clock, 0.002, 0.05)
    assert clock.percentiles() == pytest.approx((2.0, 2.0, 2.0))


def test_single_steps_take_no_longer_where_steps_are_slower_than_they_were_in_the_warm_up(clock_of):
    """As of two threads that wait for each other on a busy machine: 400 of them took 20 s."""
    clock, step = clock_of(0.03)
    (block,) = measure(clock, 0.0003, 0.6)
    assert (block.steps, step.steps - block.steps) == (83, 7)


@pytest.mark.parametrize(("step_s", "more"), [(0.1, 0), (0.03, 7)])
def test_blocks_of_one_step_are_single_steps_already(clock_of, step_s, more):
    clock, step = clock_of(step_s)
    blocks = measure(clock, step_s, 1.2)
    assert step.steps - sum(block.steps for block in blocks) == more
    assert clock.percentiles() == pytest.approx((1e3 * step_s,) * 3)


@pytest.mark.parametrize(("step_s", "limit_s", "calls"), [(0.0, 1.0, 400), (0.03, 1.0, 20), (0.03, 0.1, None)])
def test_the_latency_of_single_calls(clock_of, step_s, limit_s, calls):
    clock, _ = clock_of(0.001)
    latency = latency_of_calls(clock, step_s or 1e-6, limit_s)
    assert (latency.calls if latency else None) == calls
    if latency:
        assert (latency.p50_ms, latency.p95_ms, latency.p99_ms) == pytest.approx((1.0, 1.0, 1.0))


@given(st.floats(0.001, 1.0), st.floats(1e-4, 1.0), st.integers(1, 200))
def test_blocks_hold_whole_cycles_of_the_data(seconds, step_s, cycle):
    steps = block_steps(seconds, step_s, lambda most: cycle)
    assert steps % cycle == 0
    assert abs(steps - steps_in(seconds, step_s)) <= cycle


def test_a_cycle_is_told_how_many_steps_it_may_have():
    asked = []
    block_steps(0.1, 0.01, lambda most: asked.append(most) or 1, longest_s=0.4)
    block_steps(0.1, 0.01, lambda most: asked.append(most) or 1)
    assert asked == [40, 10]


def test_blocks_of_a_loader_in_short_epochs_are_alike_though_its_steps_are_not(clock_of):
    """Five batches are there at once, then the workers start anew: blocks of four or six steps would differ."""
    waits = [0.02, 0.0005, 0.0005, 0.0005, 0.0005] * 400
    clock, _ = clock_of(*waits)
    blocks = measure(clock, 0.0045, 0.4, cycle_of=lambda most: 5)
    assert len(blocks) >= FEWEST_BLOCKS
    assert {block.steps % 5 for block in blocks} == {0}
    assert max(block.step_ms for block in blocks) < 2 * min(block.step_ms for block in blocks)


def loader_of(samples, **options):
    return DataLoader(TensorDataset(torch.zeros(samples)), batch_size=2, **options)


@pytest.mark.parametrize(
    ("data", "cycle"),
    [
        (torch.zeros(4), 1),
        (loader_of(16), 1),  # without workers a batch takes as long as the next
        (loader_of(16, num_workers=3), 8),
        (loader_of(400, num_workers=3), 3),
        (loader_of(400, num_workers=30), 20),
    ],
)
def test_the_cycle_of_a_feed_is_a_short_epoch_or_a_batch_of_each_worker(data, cycle):
    assert Feed(data).cycle(most_steps=20) == cycle


def test_the_cycle_of_a_loader_of_unknown_length_is_a_batch_of_each_worker():
    class Endless(IterableDataset):
        def __iter__(self):
            yield from iter(int, 1)

    assert Feed(DataLoader(Endless(), num_workers=2)).cycle(most_steps=20) == 2


def blocks_of(*step_ms):
    return [Block(1, 4, ms / 1e3) for ms in step_ms]


def test_blocks_of_steps_that_are_alike_are_left_as_they_are():
    blocks = blocks_of(*[10.0, 10.1] * 12)
    assert merge_uneven(blocks) == blocks


def test_where_every_fourth_step_waits_a_block_holds_some_of_each():
    merged = merge_uneven(blocks_of(*[2.0, 2.0, 2.0, 10.0] * 6))
    assert len(merged) >= FEWEST_BLOCKS
    assert [block.step_ms for block in merged] == pytest.approx([4.0] * len(merged))
    assert sum(block.samples for block in merged) == 24 * 4


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=40))
def test_merging_loses_no_step_and_no_time(step_ms):
    blocks = blocks_of(*step_ms)
    merged = merge_uneven(blocks)
    assert sum(block.steps for block in merged) == len(blocks)
    assert sum(block.seconds for block in merged) == pytest.approx(sum(block.seconds for block in blocks))
    assert len(merged) >= min(len(blocks), FEWEST_BLOCKS)


@pytest.mark.parametrize(("seconds", "step_s", "steps"), [(1.0, 0.1, 10), (0.01, 1.0, 1), (60.0, 1e-6, 2000)])
def test_the_steps_that_fill_a_block(seconds, step_s, steps):
    assert steps_in(seconds, step_s) == steps


def test_measuring_steady_steps_takes_less_than_the_time_it_is_given(clock_of):
    clock, _ = clock_of(0.002)
    blocks = measure(clock, 0.002, 0.3)
    assert sum(block.seconds for block in blocks) < 0.3
    assert all(block.samples == 4 * block.steps for block in blocks)
    assert median(block.step_ms for block in blocks) == pytest.approx(2)


def test_what_is_to_be_compared_by_energy_is_measured_for_a_while_however_steady_it_is(clock_of):
    clock, _ = clock_of(0.002)
    blocks = measure(clock, 0.002, 0.1, at_least_s=0.5)
    assert sum(block.seconds for block in blocks) >= 0.45


def test_measuring_very_long_steps_ends_with_what_there_is(clock_of):
    clock, step = clock_of(0.15)
    assert len(measure(clock, 0.15, 0.01)) == 1
    assert step.steps == 1


@dataclass
class Graphs:
    """As PyTorch Geometric's batches."""

    x: torch.Tensor
    num_graphs: int = 2


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.ones(7, 3), 7),
        ((torch.ones(5), torch.ones(5)), 5),
        ({"x": torch.ones(6, 2)}, 6),
        ("text", 9),
        (torch.tensor(1.0), 9),
        ([{"image": torch.ones(3, 8, 8)}] * 4, 4),
        (((torch.ones(3, 8, 8),) * 4, ({"boxes": torch.ones(2, 4)},) * 4), 4),
        ([{"x": torch.ones(6, 2)}, {"y": torch.ones(6)}], 6),
        ((pack_sequence([torch.ones(3, 2), torch.ones(2, 2)]), torch.ones(2)), 2),
        (Graphs(torch.ones(5, 2)), 2),
    ],
)
def test_the_samples_of_a_batch(batch, samples):
    assert batch_samples(batch, 9) == samples


# --- warm-up --------------------------------------------------------------------------------------------------


def test_warming_up_ends_when_the_step_time_is_steady(clock_of):
    clock, step = clock_of(0.2, 0.05, 0.02, 0.005)
    warm = warm_up(clock, limit_s=20.0)
    assert warm.steady
    assert warm.steps == step.steps >= 5
    assert warm.seconds == pytest.approx(0.27 + 0.005 * (warm.steps - 3))
    assert warm.step_s == pytest.approx(0.005)


def test_a_step_that_never_settles_ends_at_the_limit(clock_of):
    times = [0.002 + 0.001 * index for index in range(1000)]
    clock, _ = clock_of(*times)
    warm = warm_up(clock, limit_s=0.2)
    assert not warm.steady
    assert 0.2 < warm.seconds < 0.4


def test_what_workers_have_ready_is_consumed_in_warming_up(clock_of):
    clock, step = clock_of(0.001)
    assert warm_up(clock, limit_s=20.0, at_least=150).steps >= 150
    assert step.steps >= 150


def test_a_step_longer_than_the_limit_is_run_once_when_the_probe_ran_some_before(clock_of):
    clock, step = clock_of(0.05)
    warm = warm_up(clock, limit_s=0.01, earlier=1)
    assert (warm.steps, step.steps, warm.steady) == (1, 1, True)


@pytest.mark.parametrize(("earlier", "least_s", "most_s"), [(0, 2.1, 2.6), (10, 1.1, 1.6), (30, 0.0, 0.11)])
def test_the_steps_before_it_count_towards_the_limit_of_warming_up(clock_of, earlier, least_s, most_s):
    """Beside other programs steps of half a second were warmed up for as long again as the five before."""
    clock, _ = clock_of(*(0.1 * 1.1**place for place in range(40)))
    warm = warm_up(clock, limit_s=2.0, earlier=earlier, earlier_step_s=0.12)
    assert least_s <= warm.seconds <= most_s


def test_an_earlier_step_that_compiled_does_not_end_the_warm_up(clock_of):
    clock, _ = clock_of(0.1)
    warm = warm_up(clock, limit_s=2.0, earlier=5, earlier_step_s=6.0)
    assert warm.steps >= 5


# --- the feed -------------------------------------------------------------------------------------------------


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


def test_a_feed_over_a_stream():
    feed = Feed(DataLoader(Stream(5), batch_size=2))
    assert [feed.next().flatten().tolist() for _ in range(4)] == [[0, 1], [2, 3], [4], [0, 1]]


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
    feed = Feed(resident_data(components))
    samples = stepper(make_step(components, None), feed, 1)(3)
    assert samples == 6
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


class Epochs(DataLoader):
    """Notes when the iterator of an epoch is made and when it is gone."""

    def __init__(self, noted):
        super().__init__(TensorDataset(torch.arange(4)), batch_size=2)
        self.noted = noted

    def __iter__(self):
        self.noted.append("begun")
        iterator = super().__iter__()
        weakref.finalize(iterator, self.noted.append, "gone")
        return iterator


def test_the_iterator_of_an_epoch_is_gone_before_the_next_one_is_made_as_in_a_loop_of_ones_own():
    of_feed, of_loop = [], []
    feed, loop = Feed(Epochs(of_feed)), Epochs(of_loop)
    for _ in range(6):
        feed.next()
    for _ in range(2):
        for _batch in loop:
            pass
    assert of_feed == [*of_loop, "begun"] == ["begun", "gone"] * 2 + ["begun"]


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


def test_a_loader_may_not_know_how_many_batches_it_has():
    loader = DataLoader(TensorDataset(torch.arange(10)), sampler=Unsized(), num_workers=2)
    assert length_of(loader) is None
    assert Feed(loader).cycle(100) == 2
    assert length_of(DataLoader(Stream(5))) is None
    assert length_of(loader_of(10)) == Feed(loader_of(10, num_workers=2)).cycle(100)


def test_batches_that_workers_may_have_ready():
    assert Feed(loader_of(10)).queued_batches == 0
    assert Feed(loader_of(10, num_workers=3)).queued_batches == 6
    assert Feed(loader_of(10, num_workers=2, prefetch_factor=5)).queued_batches == 10


# --- the probe ------------------------------------------------------------------------------------------------


def test_the_probes_batches_are_the_same_whatever_the_workers():
    images = TensorDataset(torch.arange(100))
    plain, with_workers = (
        probe_batches(DataLoader(images, batch_size=4, shuffle=True, num_workers=workers), seed=3) for workers in (0, 2)
    )
    assert len(plain) == PROBE_STEPS
    assert [batch[0].tolist() for batch in plain] == [batch[0].tolist() for batch in with_workers]


def test_the_probe_takes_what_a_short_loader_has():
    assert len(probe_batches(loader_of(8), seed=0)) == 2
    assert probe_batches(loader_of(3, drop_last=True), seed=0) == []
    assert probe_batches("batch", seed=0) == ["batch"] * PROBE_STEPS


def test_the_probes_losses_have_a_stream_of_their_own():
    def step(batch):
        return torch.rand(()) + batch

    losses = [probe_training(step, [0, 1], seed).losses for seed in (5, 5, 6)]
    assert losses[0] == losses[1] != losses[2]


def test_outputs_are_sampled_behind_their_sum():
    probe = probe_inference(lambda batch: {"a": torch.ones(5000), "b": torch.tensor([2.0])}, [None], 0)
    assert probe.outputs == (5002, *[1] * 256)
    assert probe.steps == PROBE_STEPS
    assert probe_inference(lambda batch: "text", [None], 0).outputs == ()
