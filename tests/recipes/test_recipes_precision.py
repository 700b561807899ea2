import pytest
import torch
from exported_module import module_of
from small_decoder import CATALOG, CPU, Decoder, applied, batches, both_steps, both_ways, losses, parts
from torch import nn

from advisor.records import Mode
from advisor.step.step import make_step
from advisor.step.tuning import apply_settings
from advisor.trial.inspection import current_settings, inspect_loop
from advisor.workloads.loop import Loop

pytestmark = pytest.mark.usefixtures("flags_kept")


# --- half-precision weights -----------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("value", ["bfloat16", "float16", "float32"])
def test_the_weights_and_the_optimizers_state_take_the_type(effect, value):
    components = parts()
    parameters = list(components.model.parameters())
    components.model(batches(1)[0][0]).sum().backward()
    components.optimizer.step()
    components.optimizer.zero_grad()
    model, optimizer = effect("half_weights", value, components)
    dtype = getattr(torch, value)
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    state = optimizer.state[model.head.weight]
    assert (state["exp_avg"].dtype, state["step"].dtype) == (dtype, torch.float32)


@both_steps
@pytest.mark.parametrize("value", ["bfloat16", "float32"])
def test_a_step_with_half_weights_trains_near_the_float32_one(step_of, value):
    expected = losses(applied({}))
    step = step_of({"precision.weights": value})
    found = losses(step)
    assert found == (pytest.approx(expected, rel=0.03) if value == "bfloat16" else expected)
    assert (found == expected) is (value == "float32")


def test_floating_point_targets_are_cast_too():
    components = parts(model=nn.Linear(3, 2))
    apply_settings(CATALOG, components, {"precision.weights": "bfloat16"})
    step = make_step(components, nn.functional.mse_loss)
    first, second = (step((torch.ones(4, 3), torch.zeros(4, 2))).item() for _ in range(2))
    assert second < first


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_an_exported_file_moves_batches_as_the_trials_do(memory_format, tmp_path):
    settings = {"precision.weights": "bfloat16", "model.memory_format": memory_format, "data.pin_memory": True}
    module = module_of(CATALOG, settings, Mode.TRAIN)
    images, labels = (module.on_device(part, CPU) for part in (torch.ones(2, 3, 4, 4), torch.arange(2)))
    assert images.is_contiguous(memory_format=torch.channels_last) is (memory_format == "channels_last")
    assert (images.dtype, labels.dtype) == (torch.bfloat16, torch.int64)


def test_complex_numbers_are_not_made_real():
    model = nn.Linear(2, 2)
    model.register_buffer("rotations", torch.ones(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match="complex numbers, which bfloat16 would make real"):
        CATALOG["half_weights"].apply(parts(model=model), "bfloat16")


# --- determinism ----------------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("value", [True, False])
def test_both_switches_of_determinism(effect, value):
    torch.use_deterministic_algorithms(not value)
    effect("deterministic_off", value, parts())
    assert torch.are_deterministic_algorithms_enabled() is value
    assert torch.backends.cudnn.deterministic is value


# --- what the user has on already -----------------------------------------------------------------------------


def loop_of(model):
    return Loop(model, batches(1)[0], None, None, Mode.INFER, 8)


@pytest.mark.parametrize("value", ["bfloat16", "float16"])
def test_present_weights_are_read_off_the_parameters(value):
    assert current_settings(loop_of(Decoder().to(getattr(torch, value))))["precision.weights"] == value
    mixed = Decoder()
    mixed.head.to(getattr(torch, value))
    assert current_settings(loop_of(mixed))["precision.weights"] == "float32"


def test_present_switches_are_read_off_the_process():
    torch.backends.cudnn.deterministic = True
    assert current_settings(loop_of(Decoder()))["backends.deterministic"] is True


def test_sizes_of_linear_layers_are_facts():
    model = nn.ModuleList([nn.Linear(8, 8), Decoder(), Decoder()])
    facts = inspect_loop(loop_of(model), CPU, batches(1)[0])
    assert facts.linear_shapes == ((32, 96, 2), (32, 4, 2), (8, 8, 1))
