"""The instrumented pass: phases, what the profiler recorded, and clocks."""

import gzip
import json
import time
from datetime import date
from types import SimpleNamespace

import pytest
import torch
from graphed_steps import captured
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import record_function
from torch.utils.data import DataLoader, TensorDataset

from advisor.recipe.plan import StepPlan
from advisor.records import Bottleneck, Ceilings, Mode, Profile
from advisor.step.step import InferStep, TrainStep
from advisor.trial.measurement.draws import Feed
from advisor.trial.profile import ceilings
from advisor.trial.profile.ceilings import convolutions_in_tf32, float32_matmul, float32_products
from advisor.trial.profile.profiler import TrafficCounter, profile_step, with_work
from advisor.trial.profile.recording import CAPTURED, measure_phases, record_step, with_device

pytestmark = pytest.mark.usefixtures("own_state")
CPU = torch.device("cpu")
PHASES = ["data wait", "host-to-device", "zero_grad", "forward", "loss", "backward", "optimizer"]
KIB = 1024
PLAIN = Profile(step_ms=1000.0, phases={})


class SlowData(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.002)
        return super().__getitem__(index)


def train_step(model=None):
    model = model or nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return TrainStep(model, optimizer, nn.CrossEntropyLoss(), StepPlan(mode=Mode.TRAIN, device="cpu"))


def feed_of(dataset=TensorDataset, **options):
    return Feed(DataLoader(dataset(torch.randn(64, 16), torch.randint(4, (64,))), batch_size=8, **options))


def test_the_phases_of_a_training_step_with_a_loader():
    phases = measure_phases(train_step(), feed_of(SlowData), limit_s=1.0)
    assert list(phases) == PHASES
    assert phases["data wait"] >= 16
    assert all(phases[name] > 0 for name in phases)


@pytest.mark.parametrize(("limit_s", "steps"), [(0.02, 1), (0.05, 3)])
def test_long_steps_are_timed_less_often(limit_s, steps):
    taken = []

    class Slow(nn.Module):
        def forward(self, inputs):
            taken.append(time.sleep(0.045))
            return inputs

    measure_phases(InferStep(Slow(), StepPlan(mode=Mode.INFER, device="cpu")), Feed(torch.ones(2)), limit_s=limit_s)
    assert len(taken) <= steps


def test_a_captured_step_has_no_parts_but_its_replay():
    graphed = captured(train_step())
    feed = feed_of()
    for _ in range(6):
        graphed(feed.next())
    assert graphed.captured
    parts = measure_phases(graphed, feed, limit_s=0.0)
    assert list(parts) == ["data wait", CAPTURED]
    assert parts[CAPTURED] > 0
    assert list(measure_phases(train_step(), feed_of(), limit_s=0.0)) == PHASES


class Functions(nn.Module):
    """Everything by functions over its own parameters; not a module of PyTorch's among them."""

    def __init__(self):
        super().__init__()
        self.filters = nn.Parameter(torch.randn(4, 3, 3, 3))
        self.volume_filters = nn.Parameter(torch.randn(2, 4, 1, 1, 1))
        self.weight = nn.Parameter(torch.randn(8, 4))

    def forward(self, images):
        x = nn.functional.conv2d(images, self.filters)
        x = x + nn.functional.conv3d(x[:, :, None], self.volume_filters)[:, :1, 0]
        x = nn.functional.linear(x.flatten(2).transpose(1, 2), self.weight)
        return nn.functional.scaled_dot_product_attention(x, x, x) + torch.bmm(x, x.transpose(1, 2)).mean()


@pytest.mark.parametrize("mode", ["grad", "inference_mode"])
def test_what_a_step_computes_without_modules_is_seen(mode):
    plan = StepPlan(mode=Mode.INFER, device="cpu", grad_mode=mode)
    recording = record_step(PLAIN, InferStep(Functions(), plan), Feed(torch.randn(2, 3, 6, 6)))
    assert set(recording.called) == {"attention", "batched_product", "conv2d", "conv3d", "linear"}
    assert record_step(PLAIN, InferStep(nn.ReLU(), plan), Feed(torch.randn(2, 3))).called == ()


class Annotated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, inputs):
        with record_function("my own range"):
            return self.layer(inputs)


def test_the_tables_hold_operators_and_no_ranges():
    recording = record_step(PLAIN, train_step(Annotated()), feed_of())
    names = {row.name for row in recording.operators}
    assert {"aten::addmm", "aten::mm"} <= names
    assert not names & {*PHASES, "my own range", "ProfilerStep*", "Optimizer.step#SGD.step"}
    assert recording.device_busy_share is None
    assert recording.trace_path == ""


def test_the_trace_is_readable_and_holds_the_phases(tmp_path):
    path = str(tmp_path / "000-baseline.trace.json.gz")
    assert record_step(PLAIN, train_step(), feed_of(), trace_path=path).trace_path == path
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    counts = {name: sum(event.get("name") == name and event["ph"] == "X" for event in events) for name in PHASES}
    assert counts == dict.fromkeys(PHASES, 1)


def event(name, start, end, *, device=False, annotation=False):
    """An event as the profiler gives it, times in microseconds."""
    return SimpleNamespace(
        name=name,
        key=name,
        device_type=DeviceType.CUDA if device else DeviceType.CPU,
        time_range=SimpleNamespace(start=start, end=end, elapsed_us=lambda: end - start),
        is_user_annotation=annotation,
    )


RECORDED = [
    event("forward", 0, 1000, annotation=True),
    event("aten::mm", 10, 30),
    event("cudaLaunchKernel", 15, 20),
    event("forward", 100, 5100, device=True, annotation=True),
    event("nvjet_sm90_tst_128x8", 100, 3100, device=True),
    event("nvjet_sm90_tst_128x8", 3100, 6100, device=True),
    event("elementwise_kernel", 5100, 8100, device=True),
    event("Memset (Device)", 9000, 10_000, device=True),
    event("Memcpy HtoD (Pageable -> Device)", 20_000, 26_000, device=True),
    event("elementwise_kernel", 30_000, 33_000, device=True),
]


def test_the_device_is_busy_while_a_kernel_runs():
    activity = with_device(PLAIN, RECORDED)
    assert PLAIN.step_ms * activity.device_busy_share == pytest.approx(8.0 + 1.0 + 3.0), "what overlaps counts once"
    assert activity.kernels_per_step == 5


ONE, OTHER, SQUARE = torch.ones(256), torch.ones(256), torch.ones(16, 16)
TABLE, ROWS = torch.ones(10_000, 64), torch.zeros(4, dtype=torch.int64)
ROWS_BYTES = 4 * 64 * 4


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: ONE + OTHER, 3 * KIB),  # an operator reads its inputs and writes its output
        (ONE.exp_, 2 * KIB),
        (lambda: ONE * ONE, 2 * KIB),
        (lambda: torch.ones(256), KIB),
        (lambda: torch._foreach_add_([ONE, OTHER], 1.0), 4 * KIB),
        (lambda: (SQUARE.t(), SQUARE.view(256), SQUARE[2:], torch.empty(999), SQUARE.detach()), 0),
        (SQUARE.zero_, KIB),  # overwriting reads nothing
        (lambda: SQUARE.copy_(torch.ones(()).expand(16, 16)), KIB + 4 + 4),
        (lambda: nn.functional.embedding(ROWS, TABLE), 2 * ROWS_BYTES + 4 * 8),  # looking up reads those rows only
        (lambda: TABLE[ROWS], 2 * ROWS_BYTES + 4 * 8),
        (lambda: TABLE.index_add_(0, ROWS, torch.empty(4, 64)), 3 * ROWS_BYTES + 3 * 4 * 8),
    ],
)
def test_what_an_operator_moves(call, expected):
    with TrafficCounter() as traffic:
        call()
    assert traffic.moved_bytes == expected


def test_the_work_of_a_step_is_counted():
    work = with_work(PLAIN, train_step(), feed_of())
    assert work.flops_per_step == 2 * 8 * (16 * 32 + 32 * 4) * 3 - 2 * 8 * 16 * 32  # no gradient of the inputs
    assert work.moved_bytes_per_step > 4 * 3 * (16 * 32 + 32 * 4)


def test_the_profile_of_a_small_step(tmp_path):
    path = str(tmp_path / "baseline.trace.json.gz")
    measured = profile_step(train_step(), feed_of(SlowData), step_ms=20.0, trace_path=path)
    assert {"data wait", "forward", "backward", "optimizer"} <= set(measured.phases)
    assert any("mm" in row.name for row in measured.operators)
    assert measured.flops_per_step > 2 * 8 * 16 * 32
    assert measured.moved_bytes_per_step > 8 * 16 * 4
    assert measured.ceiling_dtype == "float32"
    assert measured.ceiling_flops_per_s == measured.ceilings.matmul_flops_per_s["float32"] > 1e8
    assert measured.copy_bytes_per_s == measured.ceilings.copy_bytes_per_s > 1e7
    assert measured.call_overhead_s == measured.ceilings.call_overhead_s
    assert (measured.device_busy_share, measured.kernels_per_step) == (None, None)
    assert measured.host_to_device_bytes is None
    assert measured.trace_path == path
    assert measured.bottleneck is Bottleneck.INPUT
    assert measured.evidence


def test_workers_that_get_ahead_do_not_hide_that_the_loop_waits():
    feed = feed_of(SlowData, num_workers=1)
    measured = profile_step(train_step(), feed, step_ms=500.0)
    assert measured.phases["data wait"] > 200
    assert measured.bottleneck is Bottleneck.INPUT


def test_the_setting_for_float32_products_is_put_back():
    before = torch.get_float32_matmul_precision()
    with float32_products(tf32=True):
        assert float32_matmul() == "high"
        with float32_products(tf32=False):
            assert float32_matmul() == "highest"
        assert float32_matmul() == "high"
    assert torch.get_float32_matmul_precision() == before
    assert convolutions_in_tf32() is True


def test_what_this_machine_can_do_in_the_type_of_the_step_too():
    measured = ceilings.machine_ceilings(CPU, torch.float64)
    assert set(measured.matmul_flops_per_s) == {"float32", "bfloat16", "float64"}
    assert all(rate > 1e8 for rate in measured.matmul_flops_per_s.values())
    assert measured.copy_bytes_per_s > 1e8
    assert 0 < measured.call_overhead_s < 1e-3
    assert measured.measured_on == date.today().isoformat()


def test_what_does_not_exist_or_finds_no_room_is_left_out(monkeypatch):
    assert "bool" not in ceilings.machine_ceilings(CPU, torch.bool).matmul_flops_per_s
    monkeypatch.setattr(ceilings, "_ROOM_SHARE", 1e-9)
    cramped = ceilings.machine_ceilings(CPU, torch.float32)
    assert cramped.matmul_flops_per_s == {}
    assert cramped.copy_bytes_per_s is None
    assert cramped.call_overhead_s > 0


def test_nothing_is_measured_shortly_before_a_trial_is_given_up():
    assert ceilings.machine_ceilings(CPU, torch.float64, left_s=0.5) == Ceilings({})
