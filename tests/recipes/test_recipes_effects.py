"""What a recipe does to the plan, the workload and the process: by `apply`, and by its code."""

import sys

import pytest
import torch
from proposals import CATALOG
from recipe_workload import components, mode_for, run_code
from torch import nn

from advisor.records import Mode

# --- effects on the plan --------------------------------------------------------------------------------------

pytestmark = pytest.mark.usefixtures("flags_kept")


@pytest.mark.parametrize(
    ("recipe_id", "value", "field", "expected"),
    [
        ("channels_last", "channels_last", "memory_format", "channels_last"),
        ("channels_last", "contiguous", "memory_format", "none"),
        ("compile", "max-autotune", "compile_mode", "max-autotune"),
        ("step_graph", True, "cuda_graph", True),
        ("step_graph", False, "cuda_graph", False),
        ("zero_grad", "zeros", "zero_grad", "zeros"),
        ("loss_sync", "every_step", "loss_item", "every_step"),
        ("empty_cache", "every_step_with_del", "empty_cache", "every_step_with_del"),
        ("eval_no_grad", "inference_mode", "grad_mode", "inference_mode"),
        ("pin_memory", True, "non_blocking", True),
        ("inference_mode", "no_grad", "grad_mode", "no_grad"),
        ("half_weights", "bfloat16", "input_dtype", "bfloat16"),
        ("sdpa", "efficient", "attention_backend", "efficient"),
    ],
)
def test_the_plan_says_how_the_step_runs(recipe_id, value, field, expected):
    workload = components()
    CATALOG[recipe_id].apply(workload, value)
    assert getattr(workload.plan, field) == expected


@pytest.mark.parametrize(
    "recipe_id", ["tf32", "threads", "cudnn_benchmark", "control", "fused_optimizer", "num_workers"]
)
def test_other_recipes_leave_the_plan_alone(recipe_id):
    workload = components()
    plan = workload.plan
    CATALOG[recipe_id].apply(workload, CATALOG[recipe_id].examples[-1])
    assert workload.plan == plan


# --- apply and code have the same effect ----------------------------------------------------------------------


def effect_of_apply(recipe, value):
    workload = components(mode_for(recipe))
    recipe.apply(workload, value)
    return workload.model, workload.optimizer, workload.data


def effect_of_code(recipe, value):
    namespace = run_code(recipe, value, components(mode_for(recipe)))
    return namespace["model"], namespace["optimizer"], namespace["loader"]


both_ways = pytest.mark.parametrize("effect", [effect_of_apply, effect_of_code], ids=["apply", "code"])


@both_ways
@pytest.mark.parametrize("value", ["high", "medium"])
def test_tf32_sets_both_switches(effect, value):
    torch.backends.cudnn.allow_tf32 = False
    effect(CATALOG["tf32"], value)
    assert torch.get_float32_matmul_precision() == value
    assert torch.backends.cudnn.allow_tf32
    effect(CATALOG["tf32"], "highest")
    assert torch.get_float32_matmul_precision() == "highest"


@both_ways
def test_channels_last_changes_the_weights_strides(effect):
    model, _, _ = effect(CATALOG["channels_last"], "channels_last")
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert not model.conv.weight.is_contiguous()
    model, _, _ = effect(CATALOG["channels_last"], "contiguous")
    assert model.conv.weight.is_contiguous()


def test_channels_last_can_be_taken_back():
    workload = components()
    for value in ("channels_last", "contiguous"):
        CATALOG["channels_last"].apply(workload, value)
    assert workload.model.conv.weight.is_contiguous()


@both_ways
@pytest.mark.parametrize(
    ("value", "fused", "foreach"),
    [("default", None, None), ("fused", True, False), ("foreach", False, True), ("for-loop", False, False)],
)
def test_the_optimizer_is_rebuilt(effect, value, fused, foreach):
    model, optimizer, _ = effect(CATALOG["fused_optimizer"], value)
    group = optimizer.param_groups[0]
    assert (group["fused"], group["foreach"]) == (fused, foreach)
    assert (group["lr"], group["momentum"]) == (0.1, 0.9)
    assert group["params"][0] is model.conv.weight
    model(torch.ones(2, 3, 8, 8)).sum().backward()
    before = model.head.weight.detach().clone()
    optimizer.step()
    assert not torch.equal(model.head.weight, before)


@both_ways
def test_the_optimizers_state_goes_along(effect, monkeypatch):
    workload = components()
    workload.optimizer = torch.optim.AdamW(workload.model.parameters(), foreach=True)
    workload.model(torch.ones(2, 3, 8, 8)).sum().backward()
    workload.optimizer.step()
    monkeypatch.setattr(sys.modules[__name__], "components", lambda mode: workload)
    model, optimizer, _ = effect(CATALOG["fused_optimizer"], "fused")
    assert optimizer.state[model.head.weight]["step"].item() == 1
    assert optimizer.state[model.head.weight]["exp_avg"].abs().sum() > 0


def test_an_implementation_that_the_class_lacks_is_refused():
    workload = components()
    workload.optimizer = torch.optim.RMSprop(workload.model.parameters())
    with pytest.raises(ValueError, match="fused"):
        CATALOG["fused_optimizer"].apply(workload, "fused")


def test_num_workers_rebuilds_the_loader():
    _, _, loader = effect_of_apply(CATALOG["num_workers"], 2)
    assert (loader.num_workers, loader.persistent_workers, loader.batch_size) == (2, False, 4)
    _, _, loader = effect_of_apply(CATALOG["num_workers"], 0)
    assert (loader.num_workers, loader.persistent_workers) == (0, False)


def test_pin_memory_rebuilds_the_loader():
    _, _, loader = effect_of_apply(CATALOG["pin_memory"], True)
    assert (loader.pin_memory, loader.batch_size) == (True, 4)


def test_batch_size_rebuilds_the_loader():
    _, _, loader = effect_of_apply(CATALOG["batch_size"], 8)
    assert [len(labels) for _, labels in loader] == [8, 8]
    _, _, loader = effect_of_apply(CATALOG["batch_size"], 0)
    assert loader.batch_size == 4


@both_ways
def test_threads_are_set(effect):
    effect(CATALOG["threads"], 1)
    assert torch.get_num_threads() == 1
    effect(CATALOG["threads"], 0)
    assert torch.get_num_threads() == 1


@both_ways
def test_cudnn_benchmark_is_set(effect):
    effect(CATALOG["cudnn_benchmark"], True)
    assert torch.backends.cudnn.benchmark is True
    effect(CATALOG["cudnn_benchmark"], False)
    assert torch.backends.cudnn.benchmark is False


@pytest.mark.parametrize("value", ["none", "zeros", "manual"])
def test_the_code_clears_the_gradients(value):
    workload = components()
    workload.model(torch.ones(2, 3, 8, 8)).sum().backward()
    run_code(CATALOG["zero_grad"], value, workload)
    gradient = workload.model.head.weight.grad
    assert gradient.abs().sum() == 0 if value == "zeros" else gradient is None


@pytest.mark.parametrize(("value", "records"), [("grad", True), ("no_grad", False), ("inference_mode", False)])
def test_the_code_runs_without_gradients(value, records):
    output = run_code(CATALOG["inference_mode"], value, components(Mode.INFER))["output"]
    assert output.requires_grad is records
    assert output.is_inference() is (value == "inference_mode")


def test_the_code_compiles_the_model_in_place(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model, mode: compiled.append((model, mode)))
    workload = components()
    assert run_code(CATALOG["compile"], "max-autotune", workload)["model"] is workload.model
    assert run_code(CATALOG["compile"], "none", workload)["model"] is workload.model
    assert compiled == [(workload.model, "max-autotune")]


# --- on a GPU -------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.AdamW, None])
def test_the_graphs_code_trains_as_eager_steps_do(optimizer_class):
    mode = Mode.TRAIN if optimizer_class else Mode.INFER
    workload = components(mode, "cuda")
    if optimizer_class:
        workload.optimizer = optimizer_class(workload.model.parameters(), lr=0.01)
    graphed = run_code(CATALOG["step_graph"], True, workload)
    torch.cuda.synchronize()
    eager = components(mode, "cuda")
    if optimizer_class is None:
        with torch.no_grad():
            torch.testing.assert_close(graphed["static_output"], eager.model(graphed["inputs"]))
        return
    optimizer = optimizer_class(eager.model.parameters(), lr=0.01)
    for _ in range(4):  # three to warm up and one replay; recording runs nothing
        optimizer.zero_grad()
        nn.functional.cross_entropy(eager.model(graphed["inputs"]), graphed["targets"]).backward()
        optimizer.step()
    # By their outputs: the bias before the batch norm has no gradient but rounding, which AdamW makes full steps of.
    have, want = graphed["model"](graphed["inputs"]), eager.model(graphed["inputs"])
    torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-3)
