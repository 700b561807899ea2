"""The recipes that change a model's structure, on a real GPU: checkpoints in a graph."""

import copy
import subprocess
import sys

import pytest
import torch
from model_structures import applied
from test_recipes_checkpointing import Stacked
from torch import nn
from torch.nn import functional

from advisor.recipe import Components, torch_is_older
from advisor.recipe.catalog import load_catalog
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.compile import compile_model
from advisor.step.graph import captured
from advisor.step.step import make_step

pytestmark = pytest.mark.gpu
CATALOG = load_catalog()
CUDA = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@pytest.fixture(autouse=True)
def _fresh():
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    yield
    torch.backends.cudnn.allow_tf32 = allowed
    torch._dynamo.reset()
    torch.cuda.empty_cache()


class KeywordBlock(nn.Module):
    """Everything that it gets is a keyword, so nothing by position says which device draws the random numbers."""

    def __init__(self, width=256):
        super().__init__()
        self.wide, self.back, self.dropout = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.3)

    def forward(self, *, hidden):
        return (hidden + self.dropout(self.back(functional.gelu(self.wide(hidden)))),)


class Blocks(nn.Module):
    def __init__(self, depth=12):
        super().__init__()
        self.blocks = nn.ModuleList(KeywordBlock() for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            (x,) = block(hidden=x)
        return x


# In a process of its own: a capture that fails leaves the random generator unusable.
CAPTURE = """
import torch
from torch import nn
from advisor.inlined.checkpointing import checkpoint_blocks
model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)) for _ in range(2))).cuda()
checkpoint_blocks(model.children())
x = torch.randn(4, 8, device="cuda")
model(x).sum().backward()
torch.cuda.synchronize()
print("ran", flush=True)
with torch.cuda.graph(torch.cuda.CUDAGraph()):
    model(x).sum().backward()
print("captured", flush=True)
"""


def test_checkpoints_are_captured_or_the_conflict_says_that_they_cannot_be():
    ended = subprocess.run([sys.executable, "-c", CAPTURE], capture_output=True, text=True, check=False)
    refused = CATALOG.conflict({"memory.activation_checkpointing": "blocks", "step.cuda_graph": True})
    expected = ("ran\n", 1) if refused else ("ran\ncaptured\n", 0)
    assert (ended.stdout, ended.returncode) == expected, ended.stderr


def graphed_losses(model, x, rate):
    """Losses of eight steps in the product's own loop: three eager ones, then replays of the captured step."""
    plan = StepPlan(mode=Mode.TRAIN, device=str(CUDA), cuda_graph=True)
    components = Components(model, torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9), x, plan)
    compile_model(components.model, components.plan)
    step = captured(make_step(components, lambda model, batch: model(batch).square().mean()))
    torch.manual_seed(3)
    return [step(x).item() for _ in range(8)]


@pytest.mark.skipif(torch_is_older((2, 10)), reason="PyTorch before 2.10 cannot capture checkpoints")
@pytest.mark.parametrize("build", [Blocks, lambda: Stacked(4)])
def test_a_captured_step_with_checkpoints_draws_the_same_random_numbers(build):
    model = build().to(CUDA)
    before, still = copy.deepcopy(model), copy.deepcopy(model)
    x = torch.randn(64, 256 if isinstance(model, Blocks) else 16, device=CUDA)
    applied("checkpointing", "blocks", model)
    assert graphed_losses(model, x, 1e-5) == graphed_losses(before, x, 1e-5)
    for name, tensor in before.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    applied("checkpointing", "blocks", still)
    replayed = graphed_losses(still, x, 0.0)[4:]
    assert len(set(replayed)) == len(replayed)  # the weights stand still: only dropout makes the replays differ
