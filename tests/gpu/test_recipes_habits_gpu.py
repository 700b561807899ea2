"""Habits on a CUDA device: what a step does for them, and the lines that make the host wait."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from advisor.recipe import Components
from advisor.recipe.catalog import load_catalog
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.step import InferStep, TrainStep
from advisor.trial.inspection import _debug_switch
from advisor.trial.measurement.draws import Feed
from advisor.trial.profile.habits import stop_debugging, sync_places, validation_rows

pytestmark = pytest.mark.gpu
CATALOG = load_catalog()
DEVICE = "cuda"


@pytest.fixture(autouse=True)
def _nothing_left_on():
    yield
    torch.autograd.set_detect_anomaly(False)
    stop_debugging()
    assert torch.cuda.get_sync_debug_mode() == 0


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6)), nn.Linear(512, 4))

    def forward(self, x):
        return self.layers(x)


class Waiting(Plain):
    """Waits in five ways, two of them in one line, and prints nothing."""

    def forward(self, x):
        largest = x.max().item() + x.min().item()
        places = (x > largest).nonzero()
        copy = x.mean().cpu()
        if x.sum() > 1e9:
            return copy
        text = f"{x[0, 0]}"
        return self.layers(x) + len(text) * 0.0 + places.size(0)


LINES = {
    "largest = x.max().item() + x.min().item()": 2,
    "places = (x > largest).nonzero()": 1,
    "copy = x.mean().cpu()": 1,
    "if x.sum() > 1e9:": 1,
}


def batch(size=64):
    torch.manual_seed(1)
    return torch.randn(size, 512, device=DEVICE), torch.randint(4, (size,), device=DEVICE)


def train_step(model=None, loss=None, **plan):
    torch.manual_seed(0)
    model = (model or Plain()).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return TrainStep(model, optimizer, loss or nn.CrossEntropyLoss(), StepPlan(Mode.TRAIN, f"{DEVICE}:0", **plan))


# --- the lines that wait --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Mode.TRAIN, Mode.INFER])
def test_the_users_lines_that_wait_are_found_with_their_time(mode):
    step = train_step(Waiting())
    if mode is Mode.INFER:
        step = InferStep(step.model, StepPlan(Mode.INFER, "cuda:0", grad_mode="no_grad"), with_target=True)
    places = sync_places(step, Feed(batch()))
    found = {place.text: place for place in places}
    for text, calls in LINES.items():
        assert found[text].calls_per_step == calls, found
        assert found[text].blocked_ms > 0
        assert Path(found[text].file).name == Path(__file__).name
    assert 'text = f"{x[0, 0]}"' in found
    times = [place.blocked_ms for place in places if place.blocked_ms is not None]
    assert times == sorted(times, reverse=True)


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

    step = train_step(Long())
    data = torch.randn(4096, 4096, device=DEVICE), torch.randint(4, (4096,), device=DEVICE)
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


def test_a_step_that_never_waits_has_no_places():
    assert sync_places(train_step(), Feed(batch())) == ()


def test_waits_in_the_loss_and_in_synchronize_are_found():
    def loss(output, target):
        value = nn.functional.cross_entropy(output, target)
        history.append(value.item())
        torch.cuda.synchronize()
        return value

    history = []
    places = sync_places(train_step(loss=loss), Feed(batch()))
    assert {place.text for place in places} == {"history.append(value.item())", "torch.cuda.synchronize()"}


def test_the_scaler_of_half_precision_waits_inside_pytorch():
    places = sync_places(train_step(autocast="float16"), Feed(batch()))
    assert places
    assert all("grad_scaler" in place.file or "optim" in place.file for place in places), places


def test_copies_of_the_batch_and_habits_of_the_plan_are_left_out():
    data = TensorDataset(torch.randn(64, 512), torch.randint(4, (64,)))
    step = train_step(loss_item="every_step", empty_cache="every_step")
    assert sync_places(step, Feed(DataLoader(data, batch_size=16))) == ()


# --- habits of the plan ---------------------------------------------------------------------------------------


def test_reading_the_loss_waits_and_adding_it_up_does_not():
    waits = {}
    for value in ("never", "every_step", "accumulated"):
        step = train_step(loss_item=value)
        step(batch())
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            step(batch())
            waits[value] = False
        except RuntimeError:
            waits[value] = True
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert waits == {"never": False, "every_step": True, "accumulated": False}


@pytest.mark.parametrize("value", ["never", "every_step", "every_step_with_del"])
def test_emptying_the_cache_gives_memory_back(value):
    step = train_step(empty_cache=value)
    data = torch.randn(16384, 512), torch.randint(4, (16384,))  # a segment of its own: 10 MiB and less share one
    for _ in range(3):
        step(data)
    torch.cuda.synchronize()
    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    after = step(data)
    del after
    if value == "never":
        assert unused > 2**20
    before = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    given_back = before - torch.cuda.memory_reserved()
    # The batch's 32 MiB are still in use when the cache is emptied without `del`.
    assert (given_back >= 32 * 2**20) is (value != "every_step_with_del")


@pytest.mark.parametrize("value", ["anomaly", "profiler", "nvtx", "none"])
def test_debugging_aids_on_a_gpu(value):
    step = train_step()
    CATALOG["debug_off"].apply(Components(step.model, step.optimizer, None, step.plan), value)
    assert _debug_switch() == value
    for _ in range(3):
        step(batch())
    torch.cuda.synchronize()
    stop_debugging()
    if value != "anomaly":
        assert _debug_switch() == "none"
    with torch.profiler.profile(acc_events=True) as recorded:
        step(batch())
        torch.cuda.synchronize()
    assert any(row.self_device_time_total for row in recorded.key_averages())


# --- ways side by side ----------------------------------------------------------------------------------------


def test_validation_without_recording_needs_less_memory():
    rows = {row.way: row for row in validation_rows(train_step(), batch(8192), limit_s=0.2)}
    assert rows["grad"].memory_bytes > 2 * rows["no_grad"].memory_bytes > 0
    assert rows["inference_mode"].memory_bytes == pytest.approx(rows["no_grad"].memory_bytes, rel=0.1)
    assert all(row.step_ms > 0 for row in rows.values())
