"""Recipes of precision on a GPU: a transformer of two blocks, by ``apply`` and by the executed ``code``."""

import copy
import warnings

import pytest
import torch
from exported_module import plain_losses
from model_structures import applied, every_way
from torch import nn
from torch.profiler import ProfilerActivity, profile

from advisor.recipe import Components
from advisor.recipe.catalog import load_catalog
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.graph import GraphedStep, captured
from advisor.step.step import make_step
from advisor.step.tuning import apply_settings

pytestmark = pytest.mark.gpu

CATALOG = load_catalog()
WIDTH, HEADS, LENGTH, CLASSES = 1024, 16, 64, 16
# Relative distance of outputs or losses from float32's that the arithmetic explains, over a few layers and steps.
CLOSE = {"bfloat16": 0.02, "float16": 0.005, "float8": 0.15, "int8wo": 0.05}


@pytest.fixture(autouse=True)
def _global_flags():
    yield
    applied("deterministic_off", False, nn.Identity())
    torch.cuda.synchronize()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_products = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden):
        parts = self.qkv(self.before_attention(hidden)).chunk(3, dim=-1)
        queries, keys, values = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).flatten(2))
        return hidden + self.down(nn.functional.gelu(self.up(self.before_products(hidden))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs):
        return self.head(self.blocks(inputs).mean(1))


def transformer(dtype=torch.float32):
    torch.manual_seed(0)
    return Transformer().to("cuda", dtype)


def batches(count, dtype=torch.float32, device="cuda"):
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(8, LENGTH, WIDTH, generator=generator).to(device, dtype),
            torch.randint(CLASSES, (8,), generator=generator).to(device),
        )
        for _ in range(count)
    ]


def components(model, mode=Mode.INFER, optimizer=None):
    return Components(model.train(mode is Mode.TRAIN), optimizer, None, StepPlan(mode, "cuda:0"), 8)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.02)


def operators_of(work):
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        work()
        torch.cuda.synchronize()
    return {row.key for row in recorded.key_averages()}


def distance(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


# --- half-precision weights -----------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_in_half_precision_keep_their_weights_in_one_piece(way, kind):
    torch.manual_seed(0)
    model = kind(8, 12, num_layers=2, batch_first=True, bidirectional=True).cuda().eval()
    inputs = torch.randn(4, 6, 8, device="cuda")
    with torch.no_grad():
        expected = model(inputs)[0]
    model = way("half_weights", "bfloat16", model)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        torch.testing.assert_close(model(inputs.bfloat16())[0].float(), expected, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("graphed", [False, True])
def test_half_weights_train_close_from_float32_batches_on_the_host(graphed):
    data = [tuple(part.pin_memory() for part in batch) for batch in batches(8, device="cpu")]
    reference = transformer()
    expected = plain_losses(reference, sgd(reference), data)
    model = transformer()
    parts = components(model, Mode.TRAIN, sgd(model))
    settings = {"precision.weights": "bfloat16", "step.cuda_graph": graphed}
    apply_settings(CATALOG, parts, settings)
    step = captured(make_step(parts, nn.functional.cross_entropy))
    found = [step(batch).item() for batch in data]
    assert found == pytest.approx(expected, rel=0.05)
    if graphed:
        assert isinstance(step, GraphedStep)
        # Batches that arrive in float32 are replayed, not run eagerly for want of a matching type.
        assert "cudaGraphLaunch" in operators_of(lambda: step(data[0]))


# --- float8 and integers --------------------------------------------------------------------------------------


def needs_float8():
    pytest.importorskip("torchao")
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("float8 products need compute capability 8.9")


@every_way
@pytest.mark.parametrize("value", ["tensorwise", "rowwise"])
def test_float8_trains_close_to_bfloat16(way, value):
    needs_float8()
    data = batches(4, torch.bfloat16)
    reference, model = transformer(torch.bfloat16), transformer(torch.bfloat16)
    expected = plain_losses(reference, sgd(reference), data)
    optimizer = sgd(model)
    parameters = list(model.parameters())
    model = way("float8", value, model, optimizer)
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    found = plain_losses(model, optimizer, data)
    assert found == pytest.approx(expected, rel=CLOSE["float8"])
    assert "aten::_scaled_mm" in operators_of(lambda: model(data[0][0]))


@torch.no_grad()
def test_float8_over_half_weights_in_one_set_of_settings():
    needs_float8()
    inputs = batches(1)[0][0]
    expected = transformer().eval()(inputs)
    parts = components(transformer())
    apply_settings(CATALOG, parts, {"precision.float8": "rowwise", "precision.weights": "bfloat16"})
    assert 0 < distance(make_step(parts, None)(inputs), expected) < CLOSE["float8"]


@every_way
@torch.no_grad()
def test_integer_weights_infer_close_in_fewer_bytes(way):
    pytest.importorskip("torchao")
    model, inputs = transformer(torch.bfloat16).eval(), batches(1, torch.bfloat16)[0][0]
    expected = model(inputs)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    model = way("int8_weights", "int8wo", model)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() < before
    assert 0 < distance(model(inputs), expected) < CLOSE["int8wo"]


# --- determinism ----------------------------------------------------------------------------------------------


@every_way
def test_operations_without_a_deterministic_form_run_again(way):
    pooling = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(3)).cuda()
    images = torch.randn(4, 3, 32, 32, device="cuda")
    way("deterministic_off", True, copy.deepcopy(pooling))
    assert torch.backends.cudnn.deterministic
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        pooling(images).sum().backward()
    way("deterministic_off", False, copy.deepcopy(pooling))
    assert not torch.backends.cudnn.deterministic
    pooling(images).sum().backward()
    assert pooling[0].weight.grad.isfinite().all()
