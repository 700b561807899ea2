"""The seam between trials and a device: what a trial asks of a backend, shown with one that is made up."""

import time
from dataclasses import dataclass
from statistics import median
from types import SimpleNamespace

import pytest
import torch

from advisor.errors import TargetError
from advisor.machine import device as devices
from advisor.machine.device import Backend, backend_of, named
from advisor.trial.measurement.clock import StepClock, measure


@dataclass
class Mark:
    """A mark behind so many steps of a device that needs 3 ms for each, and need not be waited for."""

    at: int

    def synchronize(self):
        """Return at once."""

    def elapsed_time(self, later):
        return 3.0 * (later.at - self.at)


@pytest.fixture
def queue(monkeypatch):
    made = SimpleNamespace(given=0, devices=3)

    class Queued(Backend):
        is_ahead = True

        @classmethod
        def count(cls):
            return made.devices

        def synchronize(self):
            """Return at once."""

        def mark(self):
            return Mark(made.given)

    monkeypatch.setitem(devices.BACKENDS, "meta", Queued)
    return made


def test_blocks_on_a_device_that_works_behind_the_host_are_timed_by_its_marks(queue):
    def run_steps(steps):
        queue.given += steps
        return 8 * steps

    blocks = StepClock(torch.device("meta"), run_steps).blocks(4, lambda done: len(done) >= 5)
    assert {(block.steps, block.samples, block.seconds) for block in blocks} == {(4, 32, 0.012)}
    assert len(blocks) > 5  # what the device was given ahead is counted too


def test_work_in_streams_that_no_mark_sees_is_waited_for_after_each_block(monkeypatch):
    """The marks pass at once: they time the host, which may be ahead of the device by 0.4 s here."""
    step_s, done_at = 0.004, [0.0]

    def wait_until_ahead_by(seconds):
        time.sleep(max(0.0, done_at[0] - seconds - time.perf_counter()))

    class Elsewhere(Backend):
        is_ahead = True

        def synchronize(self):
            wait_until_ahead_by(0.0)

    def run_steps(steps):
        wait_until_ahead_by(0.4)
        done_at[0] = max(done_at[0], time.perf_counter()) + steps * step_s
        return steps

    monkeypatch.setitem(devices.BACKENDS, "meta", Elsewhere)
    blocks = measure(StepClock(torch.device("meta"), run_steps), step_s, 0.2)
    assert median(block.step_ms for block in blocks) >= 1e3 * step_s


def test_a_processor_is_never_waited_for_and_has_marks_by_the_hosts_clock():
    backend = backend_of(torch.device("cpu"))
    assert backend.identity().name == "CPU"
    assert not backend.is_ahead
    assert backend.free_bytes() is None
    assert backend.memory().peak_reserved_bytes > 1e6
    mark = backend.mark()
    time.sleep(0.002)
    assert mark.elapsed_time(backend.mark()) >= 2.0


@pytest.mark.parametrize(
    ("devices", "name", "said"),
    [
        (3, "meta:3", "there are 3 META devices, numbered from 0"),
        (0, "meta", "--device meta: PyTorch sees no META device"),
        (0, "xpu", "the device xpu is not known"),  # nobody has written it
    ],
)
def test_a_device_that_is_not_there_is_refused(queue, devices, name, said):
    assert named("meta:2") == torch.device("meta:2")
    queue.devices = devices
    with pytest.raises(TargetError, match=said) as refused:
        named(name)
    assert refused.value.hint


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_is_refused_where_there_is_none():
    assert named("auto") == torch.device("cpu")
    with pytest.raises(TargetError, match="PyTorch sees no CUDA device"):
        named("cuda:1")
