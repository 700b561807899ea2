"""Captured steps that make tensors of Python's numbers on the host and send them to the GPU, against plain loops."""

import os
import random
import time
import warnings

import pytest
import torch
from torch import nn

from advisor.export.python_file import python_source
from advisor.recipe.catalog import load_catalog
from advisor.step.observed_step import OTHER_NUMBERS
from advisor.step.tuning import Tuning

pytestmark = pytest.mark.gpu
GRAPH = {"step.cuda_graph": True}
STEPS = 12
DRAW = random.Random(3)
TABLE = torch.tensor([0.5, 1.0, 1.5, 2.0])


class Net(nn.Module):
    """Four outputs, with a part that makes tensors on the host; ``factor`` is for a test to change."""

    def __init__(self, part):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 4)
        self.part = part
        self.factor = 1.0
        self.calls = 0

    def forward(self, inputs):
        return self.part(self, self.linear(inputs))


def window(x):
    mask = torch.zeros(4, 4)
    for row in range(4):
        mask[row, max(0, row - 1) : row + 2] = 1.0
    return x @ mask.to(x.device)


def written(x):
    x = x * 1.0
    x[:, torch.tensor([0, 3])] = torch.tensor([0.25, 0.5], device=x.device)
    return x


PARTS = {
    "type_as": lambda model, x: torch.where(x > 0, torch.tensor(5).type_as(x), x),
    "a number among others": lambda model, x: torch.where(x > 0, torch.tensor(2.0), x),
    "a device": lambda model, x: x * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device),
    "one number on a device": lambda model, x: x * torch.tensor(0.5, device=x.device),
    "new_tensor": lambda model, x: x * x.new_tensor([1.0, 2.0, 3.0, 4.0]),
    "as_tensor": lambda model, x: x * torch.as_tensor([1.0, 2.0, 3.0, 4.0], device=x.device),
    "a range": lambda model, x: x * torch.arange(4).to(x.device),
    "computed": lambda model, x: x * torch.linspace(0, 1, 4).sqrt().flip(0).cuda(),
    "a window": lambda model, x: window(x),
    "an index": lambda model, x: x[:, torch.tensor([2, 0, 1])],
    "two indices": lambda model, x: x[torch.tensor([[0], [1]]), torch.tensor([3, 1])],
    "a list for an index": lambda model, x: x[:, [2, 0, 1]],
    "written at places": lambda model, x: written(x),
    "copied into": lambda model, x: x * torch.empty(4, device=x.device).copy_(torch.arange(4)),
    "a number of the model": lambda model, x: x * torch.tensor([model.factor] * 4, device=x.device),
}


def loss(model, batch):
    return model(batch).square().mean()


def by_api(settings, model, optimizer):
    tuning = Tuning(settings)
    model, optimizer = tuning.prepare(model, optimizer)
    return model, tuning.train_step(model, optimizer, loss)


def by_file(settings, model, optimizer):
    names = {"__name__": "tuned"}
    exec(compile(python_source(load_catalog(), settings, "train"), "tuned.py", "exec", dont_inherit=True), names)
    model, optimizer, _ = names["prepare"](model, optimizer)
    return model, names["train_step"](model, optimizer, loss)


def trained(part, settings, *, change=lambda model, number: None, tuned=by_api, steps=STEPS):
    """Losses and last weights of a training, and its step."""
    model = Net(part).cuda()
    model, step = tuned(settings, model, torch.optim.SGD(model.parameters(), lr=0.01))
    generator = torch.Generator().manual_seed(1)
    losses = []
    for number in range(steps):
        change(model, number)
        losses.append(step(torch.randn(5, 6, generator=generator).cuda()).item())
    return losses, model.linear.weight.detach().clone(), step


@pytest.mark.parametrize("name", PARTS)
def test_a_step_that_makes_tensors_on_the_host_is_captured_and_trains_as_a_plain_loop(name):
    expected, weight, _ = trained(PARTS[name], {})
    losses, tuned, step = trained(PARTS[name], GRAPH)
    assert step.captured
    assert losses == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(tuned, weight, rtol=1e-4, atol=1e-6)


def test_the_exported_file_does_the_same():
    expected, weight, _ = trained(PARTS["type_as"], {})
    losses, tuned, step = trained(PARTS["type_as"], GRAPH, tuned=by_file)
    assert step.captured
    assert losses == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(tuned, weight, rtol=1e-4, atol=1e-6)


def test_inference_is_captured():
    model = Net(PARTS["a device"]).cuda()
    batch = torch.randn(5, 6).cuda()
    tuning = Tuning(GRAPH)
    tuning.prepare(model)
    step = tuning.infer(model)
    for _ in range(6):
        result = step(batch)
    assert step.captured
    with torch.no_grad():
        torch.testing.assert_close(result, model(batch))


def from_the_ninth(model, number):
    model.factor = 1.0 if number < 8 else 2.0


def test_a_number_that_changes_between_steps_is_not_replayed_stale():
    part = PARTS["a number of the model"]
    expected, weight, _ = trained(part, {}, change=from_the_ninth, steps=24)
    losses, tuned, step = trained(part, GRAPH, change=from_the_ninth, steps=24)
    assert step.captured
    assert losses == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(tuned, weight, rtol=1e-4, atol=1e-6)


def counted(model, x):
    model.calls += 1
    return x * torch.tensor([1.0 / model.calls] * 4, device=x.device)


def drawn(model, x):
    return x * torch.tensor([DRAW.random()] * 4, device=x.device)


def of_the_host(model, x):
    return x * torch.tensor(TABLE.tolist(), device=x.device)


@pytest.mark.parametrize("part", [counted, drawn])
def test_a_number_that_changes_in_each_step_is_never_captured(part):
    DRAW.seed(3)
    expected, _, _ = trained(part, {})
    DRAW.seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        losses, _, step = trained(part, GRAPH)
    assert not step.captured
    assert losses == pytest.approx(expected, rel=1e-4)


def test_a_number_of_a_clock_is_never_captured():
    _, _, step = trained(lambda model, x: x * torch.tensor([time.perf_counter() % 1] * 4, device=x.device), GRAPH)
    assert not step.captured


def test_a_number_that_nobody_sees_change_is_refused_in_a_sentence():
    with pytest.raises(RuntimeError, match=OTHER_NUMBERS):
        trained(lambda model, x: x * torch.tensor([os.urandom(1)[0] / 255] * 4, device=x.device), GRAPH)


def test_numbers_read_from_a_tensor_of_the_host_are_refused():
    with pytest.raises(RuntimeError, match=r"Cannot copy|not permitted"):
        trained(of_the_host, GRAPH)


def own_trained(part, *, captured, change=lambda model, number: None):
    """Losses and last weights of a training with a step of the user's own."""
    model = Net(part).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)

    def step(batch):
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        return value

    run = step
    if captured:
        tuning = Tuning({**GRAPH, "optimizer.implementation": "fused"})
        tuning.prepare(model, optimizer)
        run = tuning.own_step(step, model)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for number in range(20):
        change(model, number)
        losses.append(run(torch.randn(5, 6, generator=generator).cuda()).item())
    return losses, model.linear.weight.detach().clone(), run


@pytest.mark.parametrize("name", PARTS)
def test_a_step_of_the_users_own_is_captured_with_them(name):
    expected, weight, _ = own_trained(PARTS[name], captured=False)
    losses, tuned, step = own_trained(PARTS[name], captured=True)
    assert step.captured, step.refusal
    assert losses == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(tuned, weight, rtol=1e-4, atol=1e-6)


def test_a_step_of_the_users_own_follows_a_number_that_changes():
    part = PARTS["a number of the model"]
    expected, weight, _ = own_trained(part, captured=False, change=from_the_ninth)
    losses, tuned, step = own_trained(part, captured=True, change=from_the_ninth)
    assert not step.refusal
    assert losses == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(tuned, weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("part", [counted, drawn, of_the_host])
def test_a_step_of_the_users_own_with_numbers_that_no_graph_can_follow_is_refused(part):
    DRAW.seed(3)
    expected, _, _ = own_trained(part, captured=False)
    DRAW.seed(3)
    with pytest.warns(UserWarning, match="step.cuda_graph is left out"):
        losses, _, step = own_trained(part, captured=True)
    assert step.refusal
    assert losses == pytest.approx(expected, rel=1e-4)


def test_deberta_trains_in_a_graph():
    transformers = pytest.importorskip("transformers")
    config = transformers.DebertaV2Config(
        vocab_size=100,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=16,
        max_position_embeddings=64,
        norm_rel_ebd="layer_norm",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )

    def run(settings):
        torch.manual_seed(0)
        model = transformers.DebertaV2ForMaskedLM(config).cuda()
        tuning = Tuning(settings)
        model, optimizer = tuning.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
        step = tuning.train_step(model, optimizer, lambda model, batch: model(**batch).loss)
        generator = torch.Generator().manual_seed(1)
        losses = []
        for _ in range(STEPS):
            ids = torch.randint(100, (2, 40), generator=generator).cuda()
            losses.append(step({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}).item())
        return losses, step

    expected, _ = run({})
    losses, step = run(GRAPH)
    assert step.captured
    assert losses == pytest.approx(expected, rel=2e-3)
