"""The recipes that change a model's structure, on a real GPU: outputs, random numbers, kernels and memory."""

import copy
import gc
import subprocess
import sys

import pytest
import torch
import torchvision
from model_structures import UNet, applied, scrambled
from test_recipes_checkpointing import Stacked
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from advisor.recipe import Components, torch_is_older
from advisor.recipe.catalog import load_catalog
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.graph import captured
from advisor.step.step import finish_components, make_step

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


def steps(model, x, count=5, autocast=None):
    """Losses of a few steps; the random stream begins anew."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def kernels(run):
    """The names of what the device runs, one for each launch."""
    run()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
        run()
        torch.cuda.synchronize()
    return [event.name for event in trace.events() if event.device_type == torch.autograd.DeviceType.CUDA]


def norms_among(names):
    """Those that compute batch norms: cuDNN's (``bn_fw_inf``) and PyTorch's own (``batch_norm_transform_input``)."""
    return [name for name in names if "bn_" in name or "batch_norm" in name or "batchnorm" in name.lower()]


# --- norms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels_last", [False, True])
def test_training_without_biases_agrees_and_launches_less(channels_last):
    model = scrambled(UNet()).to(CUDA)
    x = torch.randn(8, 3, 64, 64, device=CUDA)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    applied("conv_bias", False, model, optimizer)
    zeros = [parameter for parameter in model.parameters() if not parameter.any()]
    assert len(zeros) == 4  # the parameters stay, for checkpoints, and nothing reads them
    fewer, more = (kernels(lambda it=it: it(x).sum().backward()) for it in (model, before))
    assert len(fewer) < len(more)
    assert steps(model, x) == pytest.approx(steps(before, x), rel=1e-3)
    torch.testing.assert_close(model.eval()(x), before.eval()(x), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_folded_resnet_agrees_and_runs_no_norms(dtype):
    model = torchvision.models.resnet50().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    before = model.to(CUDA)
    model = applied("fold_norm", True, copy.deepcopy(before))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    model, before = model.to(dtype), before.to(dtype)
    x = torch.randn(4, 3, 224, 224, device=CUDA, dtype=dtype)
    with torch.inference_mode():
        expected, found = before(x), model(x)
        old, new = kernels(lambda: before(x)), kernels(lambda: model(x))
    assert len(norms_among(old)) >= 53
    assert not norms_among(new)
    # The bias that a convolution gets is added by a kernel of its own: in float32 that is as many as before, while a
    # norm in half precision runs three.
    assert len(new) <= len(old) - (0 if dtype is torch.float32 else 53)
    scale = expected.abs().max().item()
    assert (found - expected).abs().max().item() < (0.1 if dtype is torch.bfloat16 else 1e-4) * scale


# --- padding --------------------------------------------------------------------------------------------------


class Head(nn.Module):
    def __init__(self, vocabulary=50257, width=768):
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.head.weight, std=0.02)
        self.embedding.weight = self.head.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def test_a_padded_vocabulary_multiplies_faster_in_half_precision():
    x = torch.randn(4096, 768, device=CUDA, dtype=torch.bfloat16)
    usual = nn.Linear(768, 50257, bias=False).to(CUDA, torch.bfloat16)
    padded = applied("pad_dims", 64, nn.Sequential(copy.deepcopy(usual)))

    def milliseconds(layer):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        for _ in range(5):
            layer(x)
        marks[0].record()
        for _ in range(20):
            layer(x)
        marks[1].record()
        torch.cuda.synchronize()
        return marks[0].elapsed_time(marks[1]) / 20

    assert milliseconds(padded) < milliseconds(usual)


def test_a_padded_model_can_be_compiled_and_captured():
    model = Head(1001, 64).to(CUDA)
    tokens = torch.randint(0, 1001, (4, 16), device=CUDA)
    expected = model(tokens)
    applied("pad_dims", 64, model)
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(tokens), expected, rtol=1e-3, atol=1e-4)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        captured = model(tokens)
    graph.replay()
    torch.testing.assert_close(captured, expected, rtol=1e-3, atol=1e-4)


# --- checkpoints ----------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("build", [Blocks, lambda: Stacked(4)])
def test_checkpointed_blocks_draw_the_same_random_numbers(build, autocast):
    model = build().to(CUDA)
    before = copy.deepcopy(model)
    x = torch.randn(64, 256 if isinstance(model, Blocks) else 16, device=CUDA)
    applied("checkpointing", "blocks", model)
    assert steps(model, x, autocast=autocast) == steps(before, x, autocast=autocast)
    for name, tensor in before.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


def peak_of_step(model, size):
    """The largest memory of a step, without what earlier tests have left on the device."""
    gc.collect()
    own = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    left_over = torch.cuda.memory_allocated() - own
    x = torch.randn(size, 256, device=CUDA)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - left_over


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
    finish_components(components)
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


def test_a_memory_budget_saves_memory_in_a_compiled_model():
    usual = peak_of_step(torch.compile(Blocks(6).to(CUDA)), 16384)
    torch._dynamo.reset()
    try:
        model = applied("checkpointing", "budget-0.5", Blocks(6).to(CUDA))
        saving = peak_of_step(torch.compile(model), 16384)
    finally:
        applied("checkpointing", "none", nn.Linear(2, 2))
    assert saving < usual
