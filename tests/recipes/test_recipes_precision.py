"""Recipes of precision: weights in half precision, and those of an optional package, float8 and integer weights."""

from importlib.metadata import PackageNotFoundError

import pytest
import torch
from exported_module import module_of
from facts import cpu_facts, gpu_facts
from model_structures import applied, every_way
from proposals import CATALOG, proposed, reason
from torch import nn

from advisor.records import Mode
from advisor.trial.inspection import current_settings, inspect_loop
from advisor.workloads.loop import Loop

pytestmark = pytest.mark.usefixtures("flags_kept")
CPU = torch.device("cpu")


class Decoder(nn.Module):
    """Attention, normalization and a product: a transformer's block in small."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 4)

    def forward(self, inputs):
        queries, keys, values = (
            part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(inputs).chunk(3, dim=-1)
        )
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values)
        return self.head(self.norm(inputs + attended.transpose(1, 2).flatten(2)).mean(1))


class Wide(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 4))


def trained(make):
    torch.manual_seed(0)
    model = make()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


BATCH = torch.randn(8, 16, 32), torch.randint(4, (8,))


# --- half-precision weights -----------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("value", ["bfloat16", "float16", "float32"])
def test_the_weights_and_the_optimizers_state_take_the_type(way, value):
    model, optimizer = trained(Decoder)
    parameters = list(model.parameters())
    model(BATCH[0]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model = way("half_weights", value, model, optimizer)
    dtype = getattr(torch, value)
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    state = optimizer.state[model.head.weight]
    assert (state["exp_avg"].dtype, state["step"].dtype) == (dtype, torch.float32)


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
        applied("half_weights", "bfloat16", model)


# --- what the user has on already -----------------------------------------------------------------------------


def loop_of(model):
    return Loop(model, BATCH, None, None, Mode.INFER, batch_size=8)


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
    assert inspect_loop(loop_of(model), CPU, BATCH).linear_shapes == ((32, 96, 2), (32, 4, 2), (8, 8, 1))


# --- float8 and integers ---------------------------------------------------------------------------------------

LARGE = ((1024, 4096, 12), (4096, 1024, 12), (1024, 10, 1))
OPTIONAL = {"float8": gpu_facts(linear_shapes=LARGE), "int8_weights": gpu_facts(mode=Mode.INFER, linear_shapes=LARGE)}


@pytest.mark.parametrize("recipe_id", OPTIONAL)
def test_without_torchao_the_reason_says_how_to_get_it(recipe_id, monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    expected = "torchao is not installed; `pip install 'perf-advisor[torchao]'` adds it"
    assert reason(recipe_id, OPTIONAL[recipe_id]) == expected
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.9.0+cu126")
    assert "torchao 0.9.0+cu126 is too old (0.14 or later is needed)" in reason(recipe_id, OPTIONAL[recipe_id])


def test_float8_needs_its_units_and_large_layers(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.14.1")
    assert proposed("float8", gpu_facts(linear_shapes=LARGE)) == ["tensorwise"]
    autocast = {"precision.autocast": "bfloat16"}
    assert proposed("float8", gpu_facts(linear_shapes=LARGE, current=autocast)) == ["tensorwise", "rowwise"]
    half = gpu_facts(mode=Mode.INFER, linear_shapes=LARGE, parameter_dtypes=("bfloat16",))
    assert proposed("float8", half) == ["tensorwise", "rowwise"]
    assert "8.0 has no float8 tensor cores" in reason("float8", gpu_facts(linear_shapes=LARGE, capability=(8, 0)))
    for shapes in ((), ((512, 512, 8),), ((4096, 50257, 1),)):
        assert "multiples of 16 and at least 1,048,576 weights" in reason("float8", gpu_facts(linear_shapes=shapes))


def test_integer_weights_need_linear_layers_and_inference(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.18.0")
    infer = {"mode": Mode.INFER, "linear_shapes": LARGE}
    assert proposed("int8_weights", gpu_facts(**infer)) == ["int8wo"]
    assert proposed("int8_weights", cpu_facts(**infer)) == ["int8wo"]
    assert "no linear layers" in reason("int8_weights", gpu_facts(mode=Mode.INFER))
    assert "applies to inference only" in reason("int8_weights", gpu_facts(linear_shapes=LARGE))


@every_way
def test_float8_training_replaces_large_layers_and_keeps_their_parameters(way):
    layers = pytest.importorskip("torchao.float8.float8_linear")
    model, optimizer = trained(Wide)
    parameters = list(model.parameters())
    inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    expected = model(inputs).detach()
    model = way("float8", "tensorwise", model, optimizer)
    assert [isinstance(model[place], layers.Float8Linear) for place in (0, 2, 4)] == [False, True, False]
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    output = model(inputs)
    distance = ((output - expected).norm() / expected.norm()).item()
    assert 0 < distance < 2 * CATALOG["float8"].roundings["tensorwise"]
    output.sum().backward()
    before = model[2].weight.detach().clone()
    optimizer.step()
    assert not torch.equal(model[2].weight, before)


@every_way
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_integer_weights_compute_nearly_the_same(way, dtype):
    pytest.importorskip("torchao")
    model = Wide().to(getattr(torch, dtype)).eval()
    inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(1)).to(getattr(torch, dtype))
    expected = model(inputs).double()
    model = way("int8_weights", "int8wo", model)
    assert type(model[2].weight.data) is not torch.Tensor
    assert model[2].weight.shape == (1024, 1024)
    for grad in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with grad():
            distance = ((model(inputs).double() - expected).norm() / expected.norm()).item()
        assert 0 < distance < 8 * CATALOG["int8_weights"].roundings["int8wo"]


def test_a_layer_that_others_changed_is_no_candidate_for_float8():
    class Adapted(nn.Linear):
        pass

    normed = nn.utils.parametrizations.weight_norm(nn.Linear(1024, 1024))
    namespace = {"torch": torch}
    exec(CATALOG["float8"].code("tensorwise").partition("if optimizer")[0], namespace)
    layers = (nn.Linear(1024, 1024), normed, Adapted(1024, 1024), nn.Linear(8, 8))
    assert [namespace["is_large"](layer, "") for layer in layers] == [True, False, False, False]
