"""Habits that cost time: what a step does for them, their ways side by side, and lines that make the host wait."""

import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from advisor.recipe.plan import StepPlan
from advisor.records import Mode, Profile
from advisor.step.step import InferStep, TrainStep
from advisor.trial.measurement.draws import Feed
from advisor.trial.profile.habits import (
    SYNC_WARNING,
    SyncRecorder,
    recording,
    stop_debugging,
    sync_places,
    validation_rows,
    with_habits,
)


@pytest.fixture(autouse=True)
def _nothing_left_on():
    yield
    torch.autograd.set_detect_anomaly(False)
    stop_debugging()
    assert not torch.cuda.is_initialized() or torch.cuda.get_sync_debug_mode() == 0


def batch():
    return torch.randn(8, 16), torch.arange(8) % 4


def train_step(model=None, device="cpu", **plan):
    torch.manual_seed(0)
    model = (model or nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 4))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return TrainStep(model, optimizer, nn.CrossEntropyLoss(), StepPlan(Mode.TRAIN, device, **plan))


# --- ways side by side ----------------------------------------------------------------------------------------


def test_validation_leaves_modes_weights_and_statistics_as_they_were():
    model = nn.Sequential(nn.Linear(16, 4), nn.BatchNorm1d(4), nn.Dropout())
    step = train_step(model=model)
    model[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    validation_rows(step, batch(), limit_s=0.01)
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_model_that_returns_something_else_in_evaluation_has_no_rows():
    class Detector(nn.Linear):
        def forward(self, x):
            return super().forward(x) if self.training else [{"boxes": x}]

    step = train_step(model=Detector(16, 4))
    assert validation_rows(step, batch(), limit_s=0.01) == ()
    assert step.model.training


def test_a_profile_carries_the_habits():
    plain = Profile(step_ms=1.0, phases={})
    step = train_step()
    step(batch())
    habits = with_habits(plain, step, Feed(batch())).habits
    assert {row.habit for row in habits} == {"eval_no_grad"}
    infer = InferStep(step.model, StepPlan(Mode.INFER, "cpu"), with_target=True)
    assert with_habits(plain, infer, Feed(batch())) == plain


def test_a_compiled_model_is_looked_at_as_the_user_wrote_it():
    step = train_step()
    step(batch())
    seen = []
    step.model.register_forward_hook(lambda *_: seen.append(1))

    class Compiled(nn.Module):
        def __init__(self, model):
            super().__init__()
            self._orig_mod = model

        def forward(self, x):
            raise AssertionError("compiled anew")

    step.model = Compiled(step.model)
    assert len(with_habits(Profile(step_ms=1.0, phases={}), step, Feed(batch())).habits) == 3
    assert seen


# --- host waits -----------------------------------------------------------------------------------------------


WAITING = """
class Waiting(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.item:
            warnings.warn(SYNC_WARNING, stacklevel=1)
        return super().__torch_function__(func, types, args, kwargs)
"""


def waiting():
    """A scalar whose `item` warns, from no file of Python, as it does on CUDA in the debug mode."""
    names = {"torch": torch, "warnings": warnings, "SYNC_WARNING": SYNC_WARNING}
    exec(compile(WAITING, "<in C>", "exec"), names)
    return torch.ones(()).as_subclass(names["Waiting"])


def test_a_wait_is_put_down_to_the_users_line():
    tensor = waiting()
    recorder = SyncRecorder()
    with recording(recorder):
        for _ in range(4):
            line = sys._getframe().f_lineno + 1
            tensor.item()
        torch.add(1, tensor)
    (place,) = recorder.places(2)
    assert (place.line, place.text, place.calls_per_step) == (line, "tensor.item()", 2.0)
    assert place.file.endswith("test_recipes_habits.py")
    assert place.blocked_ms > 0


def test_the_backward_pass_is_no_wait_of_its_own_length():
    recorder = SyncRecorder()
    loss = torch.ones(2, requires_grad=True).sum()
    loss.register_hook(lambda gradient: warnings.warn(SYNC_WARNING, stacklevel=1))
    with recording(recorder):
        loss.backward()
    assert [place.blocked_ms for place in recorder.places(1)] == [None]


# --- on a GPU ---------------------------------------------------------------------------------------------------


class Waiting(nn.Linear):
    """Waits in five ways, two of them in one line, and prints nothing."""

    def __init__(self):
        super().__init__(512, 4)

    def forward(self, x):
        largest = x.max().item() + x.min().item()
        places = (x > largest).nonzero()
        copy = x.mean().cpu()
        if x.sum() > 1e9:
            return copy
        text = f"{x[0, 0]}"
        return super().forward(x) + len(text) * 0.0 + places.size(0)


LINES = {
    "largest = x.max().item() + x.min().item()": 2,
    "places = (x > largest).nonzero()": 1,
    "copy = x.mean().cpu()": 1,
    "if x.sum() > 1e9:": 1,
}


def gpu_batch(size=64):
    torch.manual_seed(1)
    return torch.randn(size, 512, device="cuda"), torch.randint(4, (size,), device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("mode", [Mode.TRAIN, Mode.INFER])
def test_the_users_lines_that_wait_are_found_with_their_time(mode):
    step = train_step(Waiting(), "cuda:0")
    if mode is Mode.INFER:
        step = InferStep(step.model, StepPlan(Mode.INFER, "cuda:0", grad_mode="no_grad"), with_target=True)
    places = sync_places(step, Feed(gpu_batch()))
    found = {place.text: place for place in places}
    for text, calls in LINES.items():
        assert found[text].calls_per_step == calls, found
        assert found[text].blocked_ms > 0
        assert Path(found[text].file).name == Path(__file__).name
    assert 'text = f"{x[0, 0]}"' in found
    times = [place.blocked_ms for place in places if place.blocked_ms is not None]
    assert times == sorted(times, reverse=True)


@pytest.mark.gpu
def test_a_wait_behind_long_work_costs_what_the_work_takes():
    class Long(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4096, 4096) / 64)

        def forward(self, x):
            for _ in range(30):
                x = x @ self.weight
            scale = x.abs().max().item()
            return x[:, :4] / (scale + 1)

    step = train_step(Long(), "cuda:0")
    data = torch.randn(4096, 4096, device="cuda"), torch.randint(4, (4096,), device="cuda")
    step(data)
    (place,) = sync_places(step, Feed(data))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    with torch.no_grad():
        step.model(data[0])
    end.record()
    torch.cuda.synchronize()
    assert place.text == "scale = x.abs().max().item()"
    assert 0.3 * start.elapsed_time(end) < place.blocked_ms < 3 * start.elapsed_time(end)


@pytest.mark.gpu
def test_reading_the_loss_waits_and_adding_it_up_does_not():
    waits = {}
    for value in ("never", "every_step", "accumulated"):
        step = train_step(nn.Linear(512, 4), "cuda:0", loss_item=value)
        step(gpu_batch())
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            step(gpu_batch())
            waits[value] = False
        except RuntimeError:
            waits[value] = True
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert waits == {"never": False, "every_step": True, "accumulated": False}
