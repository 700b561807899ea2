import random
import time

import numpy
import pytest
import torch
from graphed_steps import captured
from torch import nn

from advisor.recipe import Components
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.step import InferStep, TrainStep, make_step
from advisor.trial.measurement.draws import PROBE_STEPS
from advisor.trial.measurement.probe import probe_inference, probe_training, sample_of


def batch():
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 4


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def train_step(model=None, **plan):
    model = model or net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return TrainStep(model, optimizer, nn.CrossEntropyLoss(), StepPlan(mode=Mode.TRAIN, device="cpu", **plan))


class Drawing(nn.Module):
    """Noise of NumPy's, and a decision by Python's random numbers, as for teacher forcing."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(16, 4)

    def forward(self, x):
        output = self.layer(x + torch.from_numpy(numpy.random.randn(16)).float())
        return output if random.random() < 0.5 else output.tanh()


@pytest.mark.parametrize("mode", [Mode.TRAIN, Mode.INFER])
def test_every_probe_sees_the_same_random_numbers_of_python_and_numpy(mode):
    def probed():
        if mode is Mode.TRAIN:
            return probe_training(train_step(Drawing()), [batch()] * 4, 5)
        return probe_inference(InferStep(Drawing(), StepPlan(mode=mode, device="cpu")), [batch()[0]] * 4, 5)

    random.seed(1)
    one = probed()
    random.seed(2)
    numpy.random.seed(2)
    other = probed()
    assert (one.losses, one.outputs) == (other.losses, other.outputs)


def test_the_operations_that_gradients_flow_through_are_counted():
    def counted(model):
        return probe_training(train_step(model), [batch()], 0).operations

    one, frozen = nn.Sequential(nn.Linear(16, 4)), nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))
    frozen[0].requires_grad_(False)
    layer = counted(one)
    assert layer > 0
    assert counted(frozen) == layer
    assert counted(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))) == 2 * layer + 1


def test_losses_and_first_outputs_are_those_of_the_steps():
    step, model = train_step(), net()
    probe = probe_training(step, [batch()] * PROBE_STEPS, 0)
    with torch.no_grad():
        outputs = model(batch()[0])
    assert probe.outputs == pytest.approx([float(outputs.sum()), *outputs.flatten().tolist()])
    assert probe.losses[0] == pytest.approx(float(nn.functional.cross_entropy(outputs, batch()[1])))
    assert (len(probe.losses), probe.steps) == (PROBE_STEPS, PROBE_STEPS)
    assert probe.losses[-1] < probe.losses[0]
    assert probe.seconds > 0


def test_the_probe_leaves_the_model_as_it_is_and_trains_it_as_a_plain_loop_would():
    probed, plain = train_step(), train_step()
    probe_training(probed, [batch()] * 3, 0)
    torch.manual_seed(0)
    for _ in range(3):
        plain(batch())
    for one, other in zip(probed.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not probed.model._forward_hooks


def assert_probed_as_a_plain_step(own, model, optimizer):
    plan = StepPlan(mode=Mode.TRAIN, device="cpu")
    step = make_step(Components(model, optimizer, batch(), plan, own_step=own), None)
    probe = probe_training(step, [batch()] * 3, 0)
    assert probe.losses == pytest.approx(probe_training(train_step(), [batch()] * 3, 0).losses)


@pytest.mark.compile
def test_a_step_whose_owner_compiled_its_forward_pass_as_one_graph_can_be_probed():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="eager", fullgraph=True)
    def loss_of(inputs, target):
        return nn.functional.cross_entropy(model(inputs), target)

    def own(given):
        optimizer.zero_grad()
        loss = loss_of(*given)
        loss.backward()
        optimizer.step()
        return loss

    assert_probed_as_a_plain_step(own, model, optimizer)
    assert not model._forward_hooks


def test_a_step_with_gradients_of_single_samples_can_be_probed():
    """As of differential privacy: inside vmap an output has no values to look at."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(parameters, inputs, target):
        output = torch.func.functional_call(model, parameters, (inputs[None],))
        return nn.functional.cross_entropy(output, target[None])

    def own(given):
        optimizer.zero_grad()
        gradients_of = torch.func.vmap(torch.func.grad_and_value(loss_of), (None, 0, 0))
        gradients, losses = gradients_of({name: p.detach() for name, p in model.named_parameters()}, *given)
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name].mean(0)
        optimizer.step()
        return losses.mean()

    assert_probed_as_a_plain_step(own, model, optimizer)


def test_a_captured_step_is_replayed_on_a_batch_that_it_was_not_captured_on():
    data = [(torch.randn(8, 16), torch.arange(8) % 4) for _ in range(PROBE_STEPS)]
    step = captured(train_step())
    probe = probe_training(step, data, 0)
    assert step.captured
    plain = probe_training(train_step(), data, 0)
    assert probe.losses == pytest.approx(plain.losses, rel=1e-5)
    assert probe.outputs == plain.outputs


def test_inference_goes_back_to_the_first_batch_from_another_of_its_shapes():
    first, shorter, other = torch.ones(8, 2), torch.ones(3, 2), torch.zeros(8, 2)
    plan = StepPlan(mode=Mode.INFER, device="cpu", grad_mode="no_grad")
    step = captured(InferStep(nn.Identity(), plan))
    assert probe_inference(step, [first, shorter, other], 0).outputs == sample_of(first)
    assert step.captured
    seen = []
    probe_inference(seen.append, [first, shorter, other], 0)
    assert list(map(id, seen)) == list(map(id, [first, first, first, other, first]))
    seen.clear()
    probe_inference(seen.append, [first, shorter], 0)
    assert list(map(id, seen)) == [id(first)] * PROBE_STEPS


def sleeping(*seconds):
    """A step that takes so long, the last for all that follow."""
    left = list(seconds)

    def step(batch):
        time.sleep(left.pop(0) if len(left) > 1 else left[0])
        return torch.ones(())

    return step


@pytest.mark.parametrize(
    ("seconds", "options", "steps"),
    [
        ((0.06,), {"limit_s": 0.1}, 2),
        ((0.06,), {"limit_s": 0.01, "fewest": 1}, 1),
        ((0.5, 0.0), {"limit_s": 0.4}, 5),  # the step that compiles does not count
    ],
)
def test_slow_steps_are_fewer(seconds, options, steps):
    assert len(probe_training(sleeping(*seconds), [None] * 5, 0, **options).losses) == steps


def test_a_sample_is_the_same_in_every_layout():
    images = torch.randn(4, 3, 20, 20)
    assert sample_of(images)[1:] == sample_of(images.to(memory_format=torch.channels_last))[1:]
    assert len(sample_of(images)) == 257


def test_a_sample_spans_all_tensors_and_is_exact():
    parts = [torch.arange(0, 300.0), torch.arange(300.0, 301).reshape(()), torch.arange(301.0, 1024)]
    total, *sample = sample_of(parts)
    assert total == 1024 * 1023 / 2
    assert sample == list(range(0, 1024, 4))
    assert len(sample_of([torch.ones(5000), torch.ones(2)])) == 257  # none of the second falls on a place


@pytest.mark.parametrize(
    ("output", "sample"),
    [
        ({"scores": torch.tensor([0.5]), "boxes": torch.tensor([10_000])}, (0.5, 0.5)),
        (torch.tensor([7, 8]), (15.0, 7.0, 8.0)),
        ("text", ()),
        (torch.full((2,), 60_000.0, dtype=torch.float16), (120_000, 60_000, 60_000)),  # summed without overflow
    ],
)
def test_a_sample_of_odd_outputs(output, sample):
    assert sample_of(output) == pytest.approx(sample, rel=1e-3)
