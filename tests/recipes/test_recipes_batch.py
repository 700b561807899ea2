"""Recipes of the batch and of the optimizer that goes with it."""

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from exported_module import module_of
from facts import GIB, adamw_facts, gpu_facts, sgd_facts
from model_structures import applied
from proposals import CATALOG, proposed, reason
from recipe_workload import components
from torch import nn

from advisor.errors import RefusedError
from advisor.figures.sweep import knee_of, sweep_points
from advisor.records import BaselineRecord, Block, Candidate, Latency, Outcome, TargetSpec, TrialRecord, TrialResult
from advisor.step.tuning import Tuning
from advisor.trial.inspection import expected_state_bytes
from advisor.trial.timed_loop import components_of
from advisor.workloads.normalise import normalise
from advisor.workloads.workload import Workload

# --- batch size -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["loader", "batch", "callable"])
def test_every_kind_of_data_gets_the_new_batch_size(data):
    given = components(data=data)
    loop = normalise(Workload(given.model, given.data, optimizer=given.optimizer), TargetSpec("m:build", "."))
    changed = components_of(loop, torch.device("cpu"), CATALOG, {"data.batch_size": 8})
    images, labels = next(iter(changed.data)) if data == "loader" else changed.data
    assert len(images) == len(labels) == changed.batch_size == 8


# --- the sweep ------------------------------------------------------------------------------------------------


def baseline(size=32, rate=1000.0, peak=GIB):
    step_ms = 1e3 * size / rate
    blocks = (Block(10, 10 * size, 10 * step_ms / 1e3),)
    result = TrialResult(Outcome.MEASURED, batch_size=size, blocks=blocks, peak_reserved_bytes=peak)
    return BaselineRecord(result, step_ms, rate, half_width=0.005)


def record(size, rate=None, *, peak=GIB, outcome=Outcome.MEASURED, with_stack=False):
    candidate = Candidate("batch_size", "data.batch_size", size)
    settings = {**candidate.settings, **({"step.zero_grad": "zeros"} if with_stack else {})}
    result = TrialResult(outcome, batch_size=size, peak_reserved_bytes=peak if rate else None)
    known = {"samples_per_s": rate, "step_ms": 1e3 * size / rate} if rate else {}
    return TrialRecord(candidate, settings, result, **known)


SWEEP = [record(64, 1800.0), record(128, 2600.0), record(256, 2640.0, peak=2 * GIB)]


def test_the_points_are_the_baseline_and_what_was_tried_alone():
    other = replace(record(64, 5.0), candidate=Candidate("control", "session.control", True))
    skipped = record(1024, outcome=Outcome.SKIPPED)
    in_company = record(2048, 9999.0, with_stack=True)
    out = record(512, outcome=Outcome.OUT_OF_MEMORY)
    points = sweep_points(baseline(), [*reversed(SWEEP), other, skipped, in_company, out])
    assert [point.size for point in points] == [32, 64, 128, 256, 512]
    assert points[-1].problem == "out of memory"
    assert knee_of(points) == 128


def test_a_size_without_a_margin_of_memory_is_not_recommended():
    steep = [record(64, 2000.0), record(128, 4000.0, peak=15 * GIB)]
    points = sweep_points(baseline(), steep, memory_bytes=16 * GIB)
    assert points[-1].problem == "leaves too little memory free"
    assert knee_of(points) == 64
    assert knee_of(sweep_points(baseline(), steep, memory_bytes=80 * GIB)) == 128


def with_calls(one, p95_ms):
    return replace(one, result=replace(one.result, latency=Latency(0.9 * p95_ms, p95_ms, 1.2 * p95_ms, 100)))


CALLED = [with_calls(one, p95_ms) for one, p95_ms in zip(SWEEP, (40.0, 60.0, 110.0), strict=True)]


@pytest.mark.parametrize(("limit_ms", "size"), [(200.0, 128), (60.0, 128), (59.0, 64), (35.0, 32), (20.0, None)])
def test_the_size_to_take_keeps_the_latency_limit(limit_ms, size):
    points = sweep_points(with_calls(baseline(), 33.0), CALLED, latency_limit_ms=limit_ms)
    assert knee_of(points) == size
    assert [bool(point.problem) for point in points] == [ms > limit_ms for ms in (33.0, 40.0, 60.0, 110.0)]
    assert all("latency limit of" in point.problem for point in points if point.problem)


# --- gradient accumulation ------------------------------------------------------------------------------------


def batches(count=6, size=4):
    torch.manual_seed(1)
    return [(torch.randn(size, 3), torch.randn(size, 2)) for _ in range(count)]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_loop_that_clears_what_is_added_up_is_warned(set_to_none):
    tuning = Tuning({"step.accumulate": 2})
    model = net()
    model, optimizer = tuning.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    step = tuning.train_step(model, optimizer, nn.functional.mse_loss)
    step(batches()[0])
    model.zero_grad(set_to_none)
    with pytest.warns(UserWarning, match=r"Do not call zero_grad\(\)"):
        step(batches()[1])


def test_the_code_makes_one_update_of_several_batches():
    model = net()
    names = {
        "torch": torch,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": batches(3),
        "loss_fn": nn.functional.mse_loss,
        "device": torch.device("cpu"),
    }
    expected = net()
    inputs, targets = (torch.cat(parts) for parts in zip(*batches(3)[:2], strict=True))
    nn.functional.mse_loss(expected(inputs), targets).backward()
    exec(CATALOG["grad_accumulation"].code(2), names)
    for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


# --- optimizers of another class ------------------------------------------------------------------------------


def optimizer_of(cls, model, **options):
    heads, rest = list(model[2].parameters()), list(model[0].parameters())
    return cls([{"params": heads, "lr": 0.01, "weight_decay": 0.2}, {"params": rest}], lr=0.05, **options)


@pytest.mark.parametrize("is_exported", [False, True])
@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW])
def test_adafactor_takes_over_the_groups_and_trains(is_exported, cls):
    model = net()
    optimizer, recipe = optimizer_of(cls, model), CATALOG["optimizer_memory"]
    if is_exported:
        _, optimizer, _ = module_of(CATALOG, {recipe.key: "adafactor"}, "train").prepare(model, optimizer)
    else:
        applied(recipe.id, "adafactor", model, optimizer)
    assert type(optimizer) is torch.optim.Adafactor
    assert_takes_over(model, optimizer)


def assert_takes_over(model, optimizer):
    """An optimizer in the place of that of :func:`optimizer_of` has its groups, and trains."""
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.05]
    assert optimizer.param_groups[0]["weight_decay"] == 0.2
    losses = []
    for inputs, targets in batches(1, size=32) * 60:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.skipif(find_spec("timm") is not None, reason="timm is installed")
def test_a_package_that_is_missing_is_named():
    model = net()
    with pytest.raises(RefusedError, match="timm"):
        applied("large_batch_optimizer", "lars", model, torch.optim.SGD(model.parameters()))
    assert "pip install timm" in reason("large_batch_optimizer", gpu_facts(batch_size=8192))


@pytest.mark.parametrize(("cls", "value"), [(torch.optim.SGD, "lars"), (torch.optim.AdamW, "lamb")])
def test_timms_optimizers_take_over_the_groups(cls, value):
    pytest.importorskip("timm")
    model = net()
    optimizer = optimizer_of(cls, model)
    applied("large_batch_optimizer", value, model, optimizer)
    assert type(optimizer).__name__.lower() == value
    assert_takes_over(model, optimizer)
    facts = gpu_facts(batch_size=8192, optimizer=sgd_facts() if value == "lars" else adamw_facts())
    assert proposed("large_batch_optimizer", facts) == [value]


@pytest.mark.parametrize(
    ("cls", "options", "numbers_each"),
    [
        (torch.optim.SGD, {}, 0),
        (torch.optim.SGD, {"momentum": 0.9}, 1),
        (torch.optim.Adam, {}, 2),
        (torch.optim.AdamW, {"amsgrad": True, "foreach": True}, 3),
    ],
)
def test_the_state_is_foretold_without_making_it(cls, options, numbers_each):
    model = nn.Sequential(nn.Linear(300, 100), nn.Linear(100, 10))
    optimizer = cls(model.parameters(), lr=0.1, **options)
    foretold = expected_state_bytes(optimizer)
    assert not optimizer.state
    model(torch.randn(2, 300)).sum().backward()
    optimizer.step()
    kept = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    assert foretold == sum(tensor.nbytes for tensor in kept if tensor.dim())
    assert foretold == 4 * numbers_each * sum(parameter.numel() for parameter in model.parameters())
