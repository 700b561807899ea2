"""Steps in a real CUDA graph: what the table of loops does not have. Batches, devices, optimizers, refusals, cost."""

import time
import warnings

import psutil
import pytest
import torch
from graphed_steps import Net, batches, plain
from torch import nn
from torch.nn import functional

from advisor.step.tuning import Tuning

pytestmark = pytest.mark.gpu
GRAPH = {"step.cuda_graph": True}
FUSED = {**GRAPH, "optimizer.implementation": "fused"}


def net(device="cuda"):
    torch.manual_seed(0)
    return Net(16).to(device)


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def of_model(model, batch):
    inputs, targets = (tensor.to(next(model.parameters()).device) for tensor in batch)
    return functional.cross_entropy(model(inputs), targets)


def agree(*, model=net, make=adam, loss=of_model, settings=GRAPH, data=batches, change=lambda at, optimizer: None):
    """Run a plain loop and a captured step over the same batches, and compare them. Return the step."""
    found, step = [], None
    for of in ({}, settings):
        one = model()
        optimizer = make(one.parameters())
        if of:
            tuning = Tuning(of)
            one, optimizer = tuning.prepare(one, optimizer)
            step = tuning.train_step(one, optimizer, loss)
        else:
            step = plain(one, optimizer, loss)
        losses = []
        for at, batch in enumerate(data()):
            change(at, optimizer)
            losses.append(step(batch).item())
        found.append((losses, one.state_dict()))
    (losses, state), (others, other_state) = found
    assert others == pytest.approx(losses, rel=2e-3)
    for name, value in state.items():
        torch.testing.assert_close(other_state[name], value, rtol=5e-3, atol=5e-4)
    return step


def test_a_loss_that_wants_gradients_of_its_inputs():
    def sloped(model, batch):
        inputs = batch[0].requires_grad_()
        output = model(inputs)
        (slope,) = torch.autograd.grad(output.square().sum(), inputs, create_graph=True)
        return functional.cross_entropy(output, batch[1]) + slope.square().mean()

    assert agree(loss=sloped, data=lambda: [(x.cuda(), y.cuda()) for x, y in batches()]).captured


def test_clipping_does_not_make_the_host_wait():
    tuning, model = Tuning({}), net()
    model, optimizer = tuning.prepare(model, adam(model.parameters()))
    step = tuning.train_step(model, optimizer, functional.cross_entropy, clip_grad=0.1)
    data = [tuple(tensor.cuda() for tensor in batch) for batch in batches(3)]
    step(data[0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in data[1:]:
            step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("settings", [{"optimizer.implementation": "fused"}, GRAPH, FUSED])
def test_an_optimizer_is_fused_or_captured_and_its_state_is_a_plain_ones(settings):
    tuning, model = Tuning(settings), net()
    model, optimizer = tuning.prepare(model, adam(model.parameters()))
    step = tuning.train_step(model, optimizer, functional.cross_entropy)
    for batch in batches():
        step(tuple(tensor.cuda() for tensor in batch))
    (group,) = optimizer.param_groups
    assert (group.get("fused") is True) is ("optimizer.implementation" in settings)
    assert group["capturable"] is ("step.cuda_graph" in settings)
    assert isinstance(group["lr"], float)
    state = optimizer.state_dict()
    (group,) = state["param_groups"]
    assert (group["fused"], group["capturable"]) == (None, False)
    assert state["state"][0]["step"].device.type == "cpu"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed")
def test_a_model_on_another_gpu_than_the_current_one():
    assert torch.cuda.current_device() == 0
    assert agree(model=lambda: net("cuda:1")).captured


def own(body, dropout=0.0):
    """A plain step of the user's with an additional part, and the model that it trains."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(dropout), nn.Linear(16, 3)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(batch):
        loss = of_model(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach() + body(batch, loss.detach())

    return step, model, optimizer


REFUSED = {
    "reads a value": lambda batch, loss: 0.1 * loss.item(),
    "branches on a value": lambda batch, loss: 1.0 if loss > 0.5 else 0.0,
    "copies to the host": lambda batch, loss: batch[0].cpu().mean().to(loss.device),
    "a shape that depends on values": lambda batch, loss: batch[0][batch[0] > 0].mean(),
    "waits": lambda batch, loss: torch.cuda.synchronize() or 0.0,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_captured_runs_on_uncaptured_and_leaves_the_generator_as_it_was(name):
    losses = []
    for settings in ({}, GRAPH):
        step, model, optimizer = own(REFUSED[name], dropout=0.2)
        tuning = Tuning(settings)
        tuning.prepare(model, optimizer)
        run = tuning.own_step(step, model)
        torch.manual_seed(2)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            losses.append([float(run(tuple(tensor.cuda() for tensor in batch))) for batch in batches()])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert not run.captured
    assert len([one for one in said if "cuda_graph" in str(one.message)]) == 1
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_a_capture_that_runs_out_of_memory_leaves_the_step_eager():
    def greedy(batch, loss):
        if torch._C._cuda_isCurrentStreamCapturing():  # eager steps before a capture are told that they are captured
            torch.empty(1 << 50, device="cuda")
        return 0.0

    step, model, optimizer = own(greedy)
    tuning = Tuning(GRAPH)
    tuning.prepare(model, optimizer)
    run = tuning.own_step(step, model)
    with pytest.warns(UserWarning, match="memory"):
        losses = [float(run(tuple(tensor.cuda() for tensor in batch))) for batch in batches()]
    assert not run.captured
    assert losses[-1] < losses[0]


def test_the_step_is_faster_with_all_that_is_watched():
    """Looking for changes before each replay costs less than the launches that it saves."""

    def step_s(settings):
        model = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(6, 6), nn.ReLU())]).cuda()
        tuning = Tuning(settings)
        model, optimizer = tuning.prepare(model, adam(model.parameters()))
        step = (tuning.train_step if settings else plain)(model, optimizer, of_model)
        batch = tuple(tensor.cuda() for tensor in batches(1, size=128)[0])
        for _ in range(30):
            step(batch)
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(1000):
            step(batch)
        torch.cuda.synchronize()
        return time.perf_counter() - started

    assert min(step_s({}) for _ in range(3)) > 1.5 * min(step_s(FUSED) for _ in range(3))


@pytest.mark.timeout(600)
def test_a_million_replayed_steps_leave_memory_and_descriptors_as_they_were():
    tuning = Tuning({**FUSED, "precision.autocast": "bfloat16"})
    model = net()
    model, optimizer = tuning.prepare(model, adam(model.parameters()))
    step = tuning.train_step(model, optimizer, functional.cross_entropy)
    of_loop, here = [tuple(tensor.cuda() for tensor in batch) for batch in batches()], psutil.Process()
    used = []
    for at in range(1_000_001):
        loss = step(of_loop[at % len(of_loop)])
        if at in (100_000, 1_000_000):
            assert torch.isfinite(loss)
            found = (torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), here.num_fds(), len(here.children()))
            used.append((found, here.memory_info().rss))
    (found, resident), (found_later, resident_later) = used
    assert step.captured
    assert found_later == found
    assert resident_later - resident < 2**20
