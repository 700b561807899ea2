"""The effects of recipes on the plan, the workload and the process."""

import pytest
import torch
from exported_module import plain_losses
from proposals import CATALOG
from recipe_workload import components, mode_for, run_code

from advisor.records import Mode

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
    ],
)
def test_the_plan_says_how_the_step_runs(recipe_id, value, field, expected):
    workload = components()
    CATALOG[recipe_id].apply(workload, value)
    assert getattr(workload.plan, field) == expected


def applied(recipe_id, value):
    recipe = CATALOG[recipe_id]
    workload = components(mode_for(recipe))
    recipe.apply(workload, value)
    return workload


@pytest.mark.parametrize("value", ["high", "medium"])
def test_tf32_sets_both_switches(value):
    torch.backends.cudnn.allow_tf32 = False
    applied("tf32", value)
    assert torch.get_float32_matmul_precision() == value
    assert torch.backends.cudnn.allow_tf32
    applied("tf32", "highest")
    assert torch.get_float32_matmul_precision() == "highest"


def test_channels_last_changes_the_weights_strides():
    workload = applied("channels_last", "channels_last")
    weight = workload.model.conv.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    CATALOG["channels_last"].apply(workload, "contiguous")
    assert workload.model.conv.weight.is_contiguous()


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
    # Three steps to warm up and one replay; recording runs nothing.
    plain_losses(eager.model, optimizer, [(graphed["inputs"], graphed["targets"])] * 4)
    # By their outputs: the bias before the batch norm has no gradient but rounding, which AdamW makes full steps of.
    have, want = graphed["model"](graphed["inputs"]), eager.model(graphed["inputs"])
    torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-3)
