"""float8 on a GPU, in a transformer of two blocks, by ``apply`` and by the executed ``code``."""

import pytest
import torch
from exported_module import plain_losses
from model_structures import every_way
from torch import nn
from torch.profiler import ProfilerActivity, profile

pytestmark = pytest.mark.gpu

WIDTH, HEADS, LENGTH, CLASSES = 1024, 16, 64, 16


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


def transformer():
    torch.manual_seed(0)
    return Transformer().to("cuda", torch.bfloat16)


def batches(count):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 8, LENGTH, WIDTH, generator=generator).to("cuda", torch.bfloat16)
    return list(zip(inputs, torch.randint(CLASSES, (count, 8), generator=generator).to("cuda"), strict=True))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.02)


def operators_of(work):
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        work()
        torch.cuda.synchronize()
    return {row.key for row in recorded.key_averages()}


@every_way
@pytest.mark.parametrize("value", ["tensorwise", "rowwise"])
def test_float8_trains_close_to_bfloat16(way, value):
    pytest.importorskip("torchao")
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("float8 products need compute capability 8.9")
    data = batches(4)
    reference, model = transformer(), transformer()
    expected = plain_losses(reference, sgd(reference), data)
    optimizer = sgd(model)
    parameters = list(model.parameters())
    model = way("float8", value, model, optimizer)
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    found = plain_losses(model, optimizer, data)
    assert found == pytest.approx(expected, rel=0.15)
    assert "aten::_scaled_mm" in operators_of(lambda: model(data[0][0]))
