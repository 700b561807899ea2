"""Steps whose loss stays outside the CUDA graphs, against plain loops, with recorded operators in place of graphs."""

import collections
import copy

import pytest
import torch
from graph_stand_in import RecordedGraph
from graphed_steps import STEPS, adam, agree, batches, loaded_state, net, plain, run, sgd
from torch import nn

from advisor.recipe.plan import StepPlan
from advisor.step.graph import GraphedStep
from advisor.step.graphed_around_loss import GraphedAroundLoss
from advisor.step.step import TrainStep


def matched(output, target):
    """A loss that the host has a part in: it asks for values, and what it computes depends on them."""
    best = int(output.detach().sum(0).argmax())
    kept = output[target != 1] if bool((target == 1).any()) else output
    return nn.functional.cross_entropy(output, target) + kept[:, best].square().mean()


def of_output(loss):
    """The loss as a plain loop calls it."""
    return lambda model, batch: loss(model(batch[0]), batch[1])


def around(model, optimizer, loss, **plan):
    step = TrainStep(model, optimizer, loss, StepPlan(mode="train", device="cpu", cuda_graph="around_loss", **plan))
    return GraphedAroundLoss(step, RecordedGraph(), RecordedGraph())


def both(make=sgd, loss=matched, change=lambda at, model, optimizer: None, data=None):
    """Losses, parameters and buffers of a plain loop and of a captured step, and that step."""
    found, step = [], None
    for is_captured in (False, True):
        model = net()
        optimizer = make(model.parameters())
        step = around(model, optimizer, loss) if is_captured else plain(model, optimizer, of_output(loss))
        losses = []
        for at, batch in enumerate(data or batches()):
            change(at, model, optimizer)
            losses.append(step(batch).item())
        found.append((losses, copy.deepcopy(model.state_dict())))
    return found, step


@pytest.mark.parametrize("make", [sgd, adam, torch.optim.AdamW])
def test_a_loss_that_asks_the_host_trains_as_in_the_plain_loop(make):
    found, step = both(make)
    agree(found)
    assert step.captured
    assert (step.graph.captures, step.graph.replays) == (1, STEPS - 3)


def assigned_rate(at, model, optimizer):
    optimizer.param_groups[0]["lr"] = 0.05 / (1 + at)


def frozen(at, model, optimizer):
    model.first.weight.requires_grad_(at < 5)


@pytest.mark.parametrize("change", [assigned_rate, loaded_state, frozen])
def test_what_changes_in_the_loop_is_followed(change):
    agree(both(change=change)[0])


def test_a_smaller_last_batch_runs_eagerly_in_between():
    short = batches(1, 3)[0]
    data = [*batches(6), short, *batches(4)]
    found, step = both(data=data)
    agree(found)
    assert step.graph.captures == 1


def test_an_output_of_several_parts_of_which_the_loss_uses_some():
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x):
            return {"scores": self.first(x), "unused": self.second(x), "size": torch.ones(1)}

    def of_scores(output, target):
        return matched(output["scores"], target) * output["size"].item()

    losses, models = [], []
    for is_captured in (False, True):
        torch.manual_seed(0)
        model = Parts()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = around(model, optimizer, of_scores) if is_captured else plain(model, optimizer, of_output(of_scores))
        losses.append([step(batch).item() for batch in batches()])
        models.append(model.state_dict())
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    torch.testing.assert_close(models[1], models[0], rtol=1e-4, atol=1e-6)


def test_a_loss_with_parameters_of_its_own_trains_them():
    class Centres(nn.Module):
        def __init__(self):
            super().__init__()
            self.centres = nn.Parameter(torch.ones(3, 3))

        def forward(self, output, target):
            return (output - self.centres[target]).square().mean() + matched(output, target)

    losses, centres = [], []
    for is_captured in (False, True):
        model, loss = net(), Centres()
        optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
        step = around(model, optimizer, loss) if is_captured else plain(model, optimizer, of_output(loss))
        losses.append([step(batch).item() for batch in batches()])
        centres.append(loss.centres.detach().clone())
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    torch.testing.assert_close(centres[1], centres[0])


def test_a_loss_may_keep_outputs_and_targets():
    """As a memory bank does, or a count of right answers."""

    class Bank:
        def __init__(self):
            self.kept = collections.deque(maxlen=3)

        def __call__(self, output, target):
            older = [
                (output @ other.T).square().mean() + (target == labels).float().mean() for other, labels in self.kept
            ]
            self.kept.append((output.detach(), target))
            return matched(output, target) + sum(older)

    data = [(inputs, targets.roll(at)) for at, (inputs, targets) in enumerate(batches())]
    losses = []
    for is_captured in (False, True):
        model, loss = net(), Bank()
        make, form = (around, loss) if is_captured else (plain, of_output(loss))
        step = make(model, sgd(model.parameters()), form)
        losses.append([step(batch).item() for batch in data])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_a_loss_that_reaches_the_models_parameters_by_itself_trains_them_twice():
    """As a penalty on weights, or a head that the loss applies."""
    losses, weights = [], []
    for is_captured in (False, True):
        model = net()

        def penalised(output, target, model=model):
            return matched(output, target) + 0.5 * sum(p.square().sum() for p in model.parameters())

        optimizer = sgd(model.parameters())
        make = around(model, optimizer, penalised) if is_captured else plain(model, optimizer, of_output(penalised))
        losses.append([make(batch).item() for batch in batches()])
        weights.append(model.state_dict())
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-4, atol=1e-6)


def test_a_loss_that_calls_the_model_is_refused():
    model = net()
    step = around(model, sgd(model.parameters()), lambda model, batch: matched(model(batch[0]), batch[1]))
    with pytest.raises(ValueError, match="it cannot stay outside"):
        run(step, batches(5))


def test_a_loss_that_goes_back_from_what_the_model_keeps_is_refused():
    """As the balance of experts, in an attribute: only from outputs a gradient comes back into the graphs."""

    class Balanced(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.balance = net(), None

        def forward(self, x):
            self.balance = sum(one.square().mean() for one in self.inner.parameters())
            return self.inner(x)

    model = Balanced()
    step = around(model, sgd(model.parameters()), lambda output, target: matched(output, target) + model.balance)
    with pytest.raises(ValueError, match="the loss reads 'balance', which the forward pass sets"):
        run(step, batches(8))
    read_by_nobody = around(model, sgd(model.parameters()), matched)
    run(read_by_nobody, batches(8))
    assert read_by_nobody.captured


def test_a_capture_that_fails_in_the_loss_says_so():
    model = net()
    plan = StepPlan(mode="train", device="cpu", cuda_graph=True)
    step = GraphedStep(TrainStep(model, sgd(model.parameters()), matched, plan), RecordedGraph())
    with pytest.raises(RuntimeError, match="the loss cannot be captured: operation not permitted"):
        run(step, batches(5))
