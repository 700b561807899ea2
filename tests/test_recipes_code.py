"""The code that a recipe shows, run: for recipes of the loop and of the start, it does what their setting does."""

from __future__ import annotations

import pytest
import torch
from process_state import process_state, state_put_back
from test_recipes import CATALOG, VALUES, components, run_code
from torch import nn

from advisor.runtime.apply import apply_settings
from advisor.runtime.step import make_step


@pytest.fixture(autouse=True)
def _as_it_was():
    with state_put_back():
        yield


def weights_by_code(recipe_id, value):
    """The weights after the recipe's code has run on the first batch."""
    workload = components()
    run_code(CATALOG[recipe_id], value, workload)
    return workload.model.state_dict()


def weights_by_step(recipe_id, value):
    """The weights after one step with the setting."""
    workload = components()
    apply_settings(CATALOG, workload, {CATALOG[recipe_id].key: value})
    make_step(workload, nn.CrossEntropyLoss())(next(iter(workload.data)))
    return workload.model.state_dict()


def assert_equal(have, want):
    assert have.keys() == want.keys()
    assert [name for name in want if not torch.equal(have[name], want[name])] == []


@pytest.mark.parametrize("value", ["bfloat16", "float16"])
def test_autocasts_code_trains_as_the_step(value):
    assert_equal(weights_by_code("autocast", value), weights_by_step("autocast", value))
    plain = weights_by_step("autocast", "none")
    assert not torch.equal(plain["head.weight"], weights_by_code("autocast", value)["head.weight"])


def test_without_autocast_the_code_computes_in_float32():
    assert run_code(CATALOG["autocast"], "none", components())["output"].dtype is torch.float32


@pytest.mark.parametrize("recipe_id", ["loss_sync", "empty_cache"])
def test_the_code_of_a_habit_trains_as_the_step(recipe_id):
    for value in VALUES[recipe_id]:
        assert_equal(weights_by_code(recipe_id, value), weights_by_step(recipe_id, value))


def test_the_loss_is_read_or_summed():
    names = run_code(CATALOG["loss_sync"], "every_step", components())
    assert isinstance(names["loss_value"], float)
    names = run_code(CATALOG["loss_sync"], "accumulated", components())
    assert torch.equal(names["loss_sum"], names["loss"].detach())


def test_the_batch_is_deleted_before_the_cache_is_emptied():
    assert "inputs" not in run_code(CATALOG["empty_cache"], "every_step_with_del", components())
    assert "inputs" in run_code(CATALOG["empty_cache"], "every_step", components())


@pytest.mark.parametrize(("value", "records"), [("grad", True), ("no_grad", False), ("inference_mode", False)])
def test_validation_records_as_the_value_says(value, records):
    names = run_code(CATALOG["eval_no_grad"], value, components())
    assert not names["model"].training
    assert names["output"].requires_grad is records
    assert names["output"].is_inference() is (value == "inference_mode")


class Creates(nn.Module):
    """Creates a tensor without naming a device, and shows where it landed."""

    def forward(self, inputs):
        return torch.ones(2).device


@pytest.mark.parametrize(("value", "device"), [(True, "meta"), (False, "cpu")])
def test_tensors_are_created_on_the_device(value, device):
    names = {"torch": torch, "model": Creates(), "inputs": None, "device": torch.device("meta")}
    exec(CATALOG["create_on_device"].code(value), names)
    assert names["output"].type == device


@pytest.mark.parametrize("value", ["none", "anomaly", "profiler"])
def test_debugging_aids_by_code_and_by_apply(value):
    states = []
    for change in (CATALOG["debug_off"].apply, lambda workload, value: run_code(CATALOG["debug_off"], value, workload)):
        change(components(), value)
        states.append(process_state())
        CATALOG["debug_off"].apply(components(), "none")
    assert states[0] == states[1]
    assert (states[0]["grad"][2], states[0]["profiler"]) == (value == "anomaly", value == "profiler")


class Moved:
    """Stands for a batch's tensor and keeps what it was moved with."""

    def to(self, device, **options):
        return device, options


@pytest.mark.parametrize("value", [True, False])
def test_copies_block_or_not(value):
    names = {"inputs": Moved(), "targets": Moved(), "device": "cuda"}
    exec(CATALOG["non_blocking"].code(value), names)
    expected = ("cuda", {"non_blocking": True} if value else {})
    assert names["inputs"] == names["targets"] == expected
    workload = components()
    CATALOG["non_blocking"].apply(workload, value)
    assert workload.plan.non_blocking is value


@pytest.mark.parametrize("recipe_id", ["host_allocator", "openmp"])
def test_the_variables_in_the_code_are_those_of_the_trial(recipe_id):
    recipe = CATALOG[recipe_id]
    for value in VALUES[recipe_id]:
        shown = recipe.code(value)
        exec(shown, {})
        words = shown.split()
        assert dict(word.split("=", 1) for word in words if "=" in word) == dict(recipe.environment(value))


@pytest.mark.parametrize("recipe_id", ["control", "large_batch_optimizer", "optimizer_memory", "gpu_transforms"])
def test_the_code_of_no_change_changes_nothing(recipe_id):
    before, workload = process_state(), components()
    names = run_code(CATALOG[recipe_id], CATALOG[recipe_id].default, workload)
    assert (names["model"], names["optimizer"], names["loader"]) == (workload.model, workload.optimizer, workload.data)
    assert process_state() == before
    assert_equal(workload.model.state_dict(), components().model.state_dict())
