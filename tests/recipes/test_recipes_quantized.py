"""Recipes of an optional package: float8 training and integer weights."""

from importlib.metadata import PackageNotFoundError

import pytest
import torch
from facts import cpu_facts, gpu_facts
from proposals import proposed, reason
from small_decoder import CATALOG, both_ways, parts
from torch import nn

from advisor.records import Mode

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


class Wide(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 4))


@both_ways
def test_float8_training_replaces_large_layers_and_keeps_their_parameters(effect):
    layers = pytest.importorskip("torchao.float8.float8_linear")
    components = parts(model=Wide())
    parameters = list(components.model.parameters())
    inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    expected = components.model(inputs).detach()
    model, optimizer = effect("float8", "tensorwise", components)
    assert [isinstance(model[place], layers.Float8Linear) for place in (0, 2, 4)] == [False, True, False]
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    output = model(inputs)
    distance = ((output - expected).norm() / expected.norm()).item()
    assert 0 < distance < 2 * CATALOG["float8"].rounding("tensorwise")
    output.sum().backward()
    before = model[2].weight.detach().clone()
    optimizer.step()
    assert not torch.equal(model[2].weight, before)


@both_ways
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_integer_weights_compute_nearly_the_same(effect, dtype):
    pytest.importorskip("torchao")
    components = parts(Mode.INFER, model=Wide().to(getattr(torch, dtype)))
    inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(1)).to(getattr(torch, dtype))
    expected = components.model(inputs).double()
    model, _ = effect("int8_weights", "int8wo", components)
    assert type(model[2].weight.data) is not torch.Tensor
    assert model[2].weight.shape == (1024, 1024)
    for grad in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with grad():
            distance = ((model(inputs).double() - expected).norm() / expected.norm()).item()
        assert 0 < distance < 8 * CATALOG["int8_weights"].rounding("int8wo")


def test_a_layer_that_others_changed_is_no_candidate_for_float8():
    class Adapted(nn.Linear):
        pass

    normed = nn.utils.parametrizations.weight_norm(nn.Linear(1024, 1024))
    namespace = {"torch": torch}
    exec(CATALOG["float8"].code("tensorwise").partition("if optimizer")[0], namespace)
    layers = (nn.Linear(1024, 1024), normed, Adapted(1024, 1024), nn.Linear(8, 8))
    assert [namespace["is_large"](layer, "") for layer in layers] == [True, False, False, False]
