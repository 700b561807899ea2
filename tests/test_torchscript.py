"""Models with modules of TorchScript, whose modes, numbers and parameters are not in their Python attributes."""

import pytest
import torch
from graphed_steps import STEPS, agree, batches, both
from torch import nn

import advisor

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.*deprecated:FutureWarning")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(3, 3, bias=False)
        self.scale, self.factors, self.calls = 1.0, [1.0, 2.0], 0
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, x):
        x = self.inside(x) * self.scale * self.factors[0] + self.shift
        return x if self.training else 0.5 * x


class Counting(Block):
    def forward(self, x):
        self.calls += 1
        return self.inside(x) * (1.0 + 0.1 * self.calls)


def with_script(kind=Block):
    """A function that puts a module of TorchScript behind the last layer of a model."""

    def prepare(model):
        torch.manual_seed(1)
        model.last = nn.Sequential(model.last, torch.jit.script(kind()))

    return prepare


def freeze(block):
    block.inside.weight.requires_grad_(False)


def evaluate(block):
    block.eval()


def scale(block):
    block.scale = 2.0


def list_of_numbers(block):
    block.factors = [2.0, 2.0]


def other_buffer(block):
    block.shift = torch.ones(3)


def other_memory(block):
    block.inside.weight.data = torch.full((3, 3), 0.1)


def hook(block):
    block.inside.weight.register_hook(lambda gradient: 2 * gradient)


CHANGES = [freeze, evaluate, scale, list_of_numbers, other_buffer, other_memory, hook]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_captured_step_notices_a_change_in_torchscript(change):
    found, step = both(
        lambda at, model, optimizer: change(model.last[1]) if at == 6 else None,
        prepare=with_script(),
        data=batches(16),
    )
    agree(found)
    assert step.graph.captures == (1 if change is hook else 2)  # a hook of the user's own is left out of no step


def test_a_step_with_torchscript_is_captured():
    found, step = both(prepare=with_script())
    agree(found)
    assert (step.graph.captures, step.graph.replays) == (1, STEPS - 3)


def test_torchscript_that_counts_its_calls_is_not_captured():
    found, step = both(prepare=with_script(Counting))
    agree(found)
    assert step.graph.captures == 0


class Convolving(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), torch.jit.script(nn.BatchNorm2d(4))

    def forward(self, x):
        x = torch.relu(self.norm(self.convolution(x)))
        return (x * torch.sigmoid(x) + 1.0).mean((2, 3))


def made_alike(make):
    torch.manual_seed(0)
    return make()


MAKERS = {
    "script": lambda: torch.jit.script(Convolving()),
    "script inside": Convolving,
    "script in a row": lambda: nn.Sequential(torch.jit.script(Convolving())),
}


@pytest.mark.parametrize("setting", ["model.conv_bias_before_norm: false"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_model_with_torchscript_trains_the_same_under_settings_that_trace(name, setting, tmp_path):
    path = tmp_path / "tuned.yaml"
    path.write_text(f"{setting}\n", encoding="utf-8")
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(4, 3, 8, 8, generator=generator), torch.arange(4)) for _ in range(4)]
    plain, tuned = (made_alike(MAKERS[name]) for _ in range(2))
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (plain, tuned)]
    tuning = advisor.load(path)
    tuned, _ = tuning.prepare(tuned, optimizers[1])
    step = tuning.train_step(tuned, optimizers[1], nn.functional.cross_entropy)
    for inputs, targets in data:
        optimizers[0].zero_grad()
        loss = nn.functional.cross_entropy(plain(inputs), targets)
        loss.backward()
        optimizers[0].step()
        assert step((inputs, targets)).item() == pytest.approx(loss.item(), rel=1e-5)
    assert tuned.eval()(data[0][0]).sum().item() == pytest.approx(plain.eval()(data[0][0]).sum().item(), rel=1e-4)
