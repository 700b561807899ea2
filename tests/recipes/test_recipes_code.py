"""Effects of a recipe on the objects, the process, the plan and the step; the code that it shows has the same ones."""

import subprocess
import sys

import pytest
import torch
from process_state import process_state, state_put_back
from proposals import CATALOG
from recipe_workload import components, mode_for, refusal, run_code
from test_recipes_kept_promises import components as promised
from torch import nn

import advisor
from advisor.recipe import Recipe, Stage
from advisor.step.step import make_step
from advisor.step.tuning import apply_settings

pytestmark = pytest.mark.usefixtures("flags_kept")
# Compared in tests of their own: a part of the loop though `apply` is overridden; from timm; for
# Hugging Face decoders.
OWN_WAY = {"control", "eval_no_grad", "gpu_prefetch", "large_batch_optimizer", "training_cache"}


# --- objects and process --------------------------------------------------------------------------------------


def workload_for(recipe):
    return promised(mode_for(recipe), adam=True)


def described(model, optimizer):
    """All that a recipe may do to objects and process, in what can be compared."""
    tensors = {
        name: (tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad, tensor.tolist())
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }
    modules = {
        name: (type(module).__name__, type(vars(module).get("forward")).__name__, getattr(module, "inplace", None))
        for name, module in model.named_modules()
    }
    groups = [
        {name: str(value) for name, value in group.items() if name != "params"}
        for group in (optimizer.param_groups if optimizer else [])
    ]
    return tensors, modules, type(optimizer).__name__, groups, process_state()


def is_compared(recipe):
    """Whether code and `apply` do the same to objects and process, on any machine.

    The rest has tests of its own: what only changes the plan is shown as a part of the loop, what has to be in the
    environment starts Python anew, what compiles is in the tier for that. The code for a loader is the call that makes
    it, with ``...`` for the arguments that stay.
    """
    own_way = recipe.stage is Stage.GLOBAL or recipe.calls or type(recipe).apply is not Recipe.apply
    changes_objects = own_way and recipe.id not in OWN_WAY
    apart = recipe.stage in (Stage.ENVIRONMENT, Stage.DATA)
    return changes_objects and not recipe.expensive and not recipe.package and not apart


def cases():
    for recipe in filter(is_compared, CATALOG):
        yield from (pytest.param(recipe, value, id=f"{recipe.id}={value}") for value in recipe.values)


@pytest.mark.parametrize(("recipe", "value"), cases())
def test_code_leaves_objects_and_process_as_apply_does(recipe, value):
    with state_put_back():
        workload = workload_for(recipe)
        if reason := refusal(recipe, value, workload):
            pytest.skip(reason)
        applied = described(workload.model, workload.optimizer)
    with state_put_back():
        names = run_code(recipe, value, workload_for(recipe))
        assert described(names["model"], names["optimizer"]) == applied


def test_values_that_are_compared_differ():
    unseen = []
    for recipe in filter(is_compared, CATALOG):
        states = []
        for value in recipe.values:
            with state_put_back():
                workload = workload_for(recipe)
                if not refusal(recipe, value, workload):
                    states.append(described(workload.model, workload.optimizer))
        unseen += [recipe.id] if len(states) > 1 and all(state == states[0] for state in states) else []
    assert unseen == []


# --- the step -------------------------------------------------------------------------------------------------


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


def test_the_loss_is_read_or_summed():
    names = {"loss": torch.tensor(2.0), "loss_sum": torch.tensor(1.0)}
    for value in CATALOG["loss_sync"].values:
        exec(CATALOG["loss_sync"].code(value), names)
    assert (names["loss_value"], names["loss_sum"]) == (2.0, torch.tensor(3.0))


def test_the_batch_is_deleted_before_the_cache_is_emptied():
    assert "inputs" not in run_code(CATALOG["empty_cache"], "every_step_with_del", components())
    assert "inputs" in run_code(CATALOG["empty_cache"], "every_step", components())


@pytest.mark.parametrize(("value", "records"), [("grad", True), ("no_grad", False), ("inference_mode", False)])
def test_validation_records_as_the_value_says(value, records):
    names = run_code(CATALOG["eval_no_grad"], value, components())
    assert not names["model"].training
    assert names["output"].requires_grad is records
    assert names["output"].is_inference() is (value == "inference_mode")


def test_the_variables_in_the_code_are_those_of_the_trial():
    recipe = CATALOG["host_allocator"]
    for value in recipe.values:
        shown = recipe.code(value)
        exec(shown, {})
        words = shown.split()
        assert dict(word.split("=", 1) for word in words if "=" in word) == dict(recipe.environment(value))


@pytest.mark.parametrize("recipe_id", ["control", "large_batch_optimizer", "optimizer_memory", "gpu_transforms"])
def test_the_code_of_no_change_changes_nothing(recipe_id):
    workload = components()
    before = process_state()  # behind the process's first optimizer, which imports the compiler
    names = run_code(CATALOG[recipe_id], CATALOG[recipe_id].default, workload)
    assert (names["model"], names["optimizer"], names["loader"]) == (workload.model, workload.optimizer, workload.data)
    assert process_state() == before
    assert_equal(workload.model.state_dict(), components().model.state_dict())


# --- the plan and the process --------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [one for one in CATALOG if one.plan_field], ids=lambda recipe: recipe.id)
def test_the_plan_says_how_the_step_runs(recipe):
    for value in recipe.values:
        workload = components(mode_for(recipe))
        if not refusal(recipe, value, workload):
            wanted = "none" if value == "contiguous" else value
            assert getattr(workload.plan, recipe.plan_field) == wanted


def test_what_the_user_has_set_is_emptied_to_measure_it_off(monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert CATALOG.environment({"cpu.allocator": "malloc"}) == {}
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so.2")
    assert CATALOG.environment({"cpu.allocator": "malloc"}) == {"LD_PRELOAD": ""}


def test_a_setting_of_the_environment_that_comes_too_late_is_pointed_out(tmp_path):
    (tmp_path / "t.yaml").write_text("cpu.allocator: jemalloc\n", encoding="utf-8")
    tuning = advisor.load(str(tmp_path / "t.yaml"))
    with pytest.warns(UserWarning, match="LD_PRELOAD=.*jemalloc.* python"):
        tuning.prepare(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("value", ["default", "expandable_segments"])
def test_the_allocators_code_sets_what_the_trial_gets(value):
    code = CATALOG["allocator"].code(value) + "print(os.environ['PYTORCH_CUDA_ALLOC_CONF'])\n"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert printed == CATALOG["allocator"].environment(value)["PYTORCH_CUDA_ALLOC_CONF"]
