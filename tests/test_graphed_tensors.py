"""What a captured step has to follow beside numbers: tensors of all kinds, gradients and random numbers."""

import collections
import copy
import operator
import random

import numpy as np
import pytest
import torch
from graph_stand_in import RecordedGraph
from graphed_steps import STEPS, Net, adam, agree, batches, both, graphed, net, of_model, plain, run, sgd
from torch import nn

from advisor.errors import RefusedError
from advisor.recipe.plan import StepPlan
from advisor.step.capturing import renew_accumulators
from advisor.step.graph import GraphedStep
from advisor.step.graph import refuse_if_never_captured
from advisor.step.step import InferStep

# --- batches --------------------------------------------------------------------------------------------------


def smooth(model, batch):
    """A loss of the gradient with respect to the inputs, as of equations and of forces."""
    inputs = batch[0].requires_grad_()
    output = model(inputs)
    (slope,) = torch.autograd.grad(output.square().sum(), inputs, create_graph=True)
    return nn.functional.cross_entropy(output, batch[1]) + slope.square().mean()


def test_a_loss_that_wants_gradients_of_its_inputs():
    found, step = both(loss=smooth)
    agree(found)
    assert step.graph.captures == 1


def test_batches_that_want_gradients_themselves():
    found, step = both(loss=smooth, data=[(x.requires_grad_(), y) for x, y in batches()])
    agree(found)
    assert step.graph.captures == 1


def test_sparse_batches_run_eagerly_for_a_copy_gives_them_other_memory():
    def loss(model, batch):
        return of_model(model, (torch.sparse.mm(batch[0], batch[1]), batch[2]))

    generator = torch.Generator().manual_seed(2)
    data = [((torch.rand(5, 5, generator=generator) > 0.5).float().to_sparse(), *batch) for batch in batches()]
    found, step = both(loss=loss, data=data)
    agree(found)
    assert step.graph.captures == 0


@pytest.mark.parametrize("grad_mode", ["no_grad", "inference_mode"])
def test_a_step_that_writes_into_its_batch_is_not_captured(grad_mode):
    """As a model that generates writes into the cache of its keys: a graph would write into a copy."""

    class Caching(nn.Module):
        def forward(self, x, cache):
            return cache.add_(x).sum()

    plan = StepPlan(mode="infer", device="cpu", grad_mode=grad_mode)
    step = GraphedStep(InferStep(Caching(), plan), RecordedGraph())
    cache = torch.zeros(3)
    sums = [step((torch.full((3,), float(at)), cache)).item() for at in range(12)]
    assert sums == [3.0 * at * (at + 1) / 2 for at in range(12)]
    assert step.graph.captures == 0


# --- random numbers of the host -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "draw",
    [lambda: torch.rand(()).item(), random.random, np.random.rand],
    ids=["torch", "random", "numpy"],
)
def test_a_step_that_decides_by_random_numbers_of_the_host_is_not_captured(draw):
    """As layers that are dropped at random: a graph would repeat one decision for ever."""

    class Dropping(Net):
        def forward(self, x):
            return super().forward(0.0 * x if draw() < 0.5 else x)

    model = Dropping()
    step = graphed(model, sgd(model.parameters()))
    with pytest.warns(UserWarning, match="draws random numbers on the host"):
        run(step, batches(60))
    assert step.graph.captures == 0


@pytest.mark.parametrize(
    "make_draw",
    [
        lambda: random.Random(3).random,
        lambda: np.random.default_rng(3).random,
        lambda: collections.deque(random.Random(3).choices([0.0, 1.0], k=STEPS)).popleft,
        lambda: iter(random.Random(3).choices([0.0, 1.0], k=STEPS)).__next__,
    ],
    ids=["random", "numpy", "deque", "iterator"],
)
def test_a_step_that_draws_by_a_method_in_an_attribute_is_not_captured(make_draw):
    def prepare(model):
        model.draw = make_draw()

    found, step = both(prepare=prepare, loss=lambda model, batch: of_model(model, batch) * (1 + model.draw()))
    agree(found)
    assert step.graph.captures == 0


@pytest.mark.parametrize("share", [0.0, 0.1])
@pytest.mark.parametrize("keeps", [operator.ge, operator.gt], ids=["Hugging Face", "torchaudio"])
def test_layers_that_are_dropped_with_a_share_of_none_are_captured(keeps, share):
    """As most models that can drop layers have it: they draw, and nothing comes of it."""

    class Dropping(Net):
        def forward(self, x):
            kept = [keeps(torch.rand([]), share) for _ in range(4)]
            return sum(kept) / 4 * super().forward(x)

    def trained(is_captured):
        torch.manual_seed(0)
        model = Dropping()
        optimizer = sgd(model.parameters())
        step = graphed(model, optimizer) if is_captured else plain(model, optimizer, of_model)
        torch.manual_seed(1)
        return (run(step, batches()), model.state_dict()), step

    (found, _), (captured, step) = trained(False), trained(True)
    agree([found, captured])
    assert step.graph.captures == (share == 0.0)


def test_random_numbers_that_the_loop_draws_between_steps_cost_no_capture():
    assert both(lambda *_: (torch.rand(3), random.random()))[1].graph.captures == 1


# --- gradients and state --------------------------------------------------------------------------------------


def accumulator_of(leaf):
    return leaf.view_as(leaf).grad_fn.next_functions[0][0]


@pytest.mark.parametrize("keeps", ["the loss of an earlier step", "a node with a hook"])
def test_gradients_are_added_up_on_the_stream_of_the_capture(keeps):
    """Nodes that an earlier graph keeps have the stream that it was made on, which no capture may wait for."""
    model = net()
    weight, calls = model.last.weight, []
    weight.register_post_accumulate_grad_hook(calls.append)
    kept = of_model(model, batches()[0])
    kept.backward()
    accumulator_of(weight).metadata["of the earlier graph"] = True
    if keeps == "a node with a hook":
        kept = accumulator_of(weight)
    address = weight.data_ptr()
    step = graphed(model, sgd(model.parameters()))
    run(step, batches())
    assert step.graph.captures == 1
    assert bool(accumulator_of(weight).metadata) == (keeps == "a node with a hook")
    assert weight.data_ptr() == address
    assert kept is not None
    assert calls


def test_sparse_leaves_keep_what_adds_up_their_gradients():
    sparse = torch.eye(3).to_sparse().requires_grad_()
    renew_accumulators([sparse])
    assert torch.equal(sparse.to_dense(), torch.eye(3))


@pytest.mark.parametrize("cleared", [True, False], ids=["to none", "to zero"])
@pytest.mark.parametrize("make", [sgd, lambda p: torch.optim.AdamW(p, lr=0.01)], ids=["inside", "outside"])
def test_gradients_for_another_optimizer_add_up_until_its_step(make, cleared):
    """As of a trunk that is trained every third step: what a replay computes is added to what is there."""

    def trained(is_captured):
        model = net()
        trunk = torch.optim.SGD([*model.first.parameters(), *model.norm.parameters()], lr=0.05)
        head = make(model.last.parameters())
        step = graphed(model, head) if is_captured else plain(model, head, of_model)
        losses = []
        for at, batch in enumerate(batches(20)):
            losses.append(step(batch).item())
            if at % 3 == 2:
                trunk.step()
                trunk.zero_grad(set_to_none=cleared)
        return (losses, model.state_dict()), step

    found, _ = trained(False)
    captured, step = trained(True)
    agree([found, captured])
    assert step.graph.captures == 1


def test_state_of_the_optimizer_that_is_replaced_is_noticed():
    def change(at, model, optimizer):
        if at == 6:
            for state in optimizer.state.values():
                for name in {"exp_avg", "momentum_buffer"} & state.keys():
                    state[name] = torch.zeros_like(state[name])

    for make in (sgd, adam):
        found, step = both(change, make=make, data=batches(20))
        agree(found)
        assert step.graph.captures == 2


# --- tensors in attributes and closures -----------------------------------------------------------------------


class Masked(Net):
    def __init__(self):
        super().__init__()
        self.mask = torch.ones(6)
        self.options = {"shift": torch.zeros(6)}

    def forward(self, x):
        return super().forward(self.mask * x + self.options["shift"])


def test_a_tensor_that_takes_the_place_of_another_is_noticed():
    weight = torch.ones(3)

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1], weight=weight)

    def trained(is_captured):
        nonlocal weight
        torch.manual_seed(0)
        model, weight = Masked(), torch.ones(3)
        optimizer = sgd(model.parameters())
        step = graphed(model, optimizer, loss) if is_captured else plain(model, optimizer, loss)
        losses = []
        for at, batch in enumerate(batches(24)):
            if at == 6:
                model.mask = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
            if at == 12:
                model.options["shift"] = torch.full((6,), 0.3)
            if at == 18:
                weight = torch.tensor([0.2, 1.0, 3.0])
            losses.append(step(batch).item())
        return (losses, copy.deepcopy(model.state_dict())), step

    (found, _), (captured, step) = trained(False), trained(True)
    agree([found, captured])
    assert step.graph.captures >= 1


@pytest.mark.parametrize("as_pair", [False, True], ids=["tensor", "pair"])
def test_a_model_that_carries_its_state_from_step_to_step_is_not_captured(as_pair):
    class Remembering(Net):
        def __init__(self):
            super().__init__()
            self.hidden = (torch.zeros(5, 6), 0.5) if as_pair else torch.zeros(5, 6)

        def forward(self, x):
            before = self.hidden[0] if as_pair else self.hidden
            after = torch.tanh(x + before).detach()
            self.hidden = (after, 0.5) if as_pair else after
            return super().forward(x + before)

    def trained(is_captured):
        torch.manual_seed(0)
        model = Remembering()
        optimizer = sgd(model.parameters())
        step = graphed(model, optimizer) if is_captured else plain(model, optimizer, of_model)
        return ([step(batch).item() for batch in batches()], model.state_dict()), step

    (found, _), (captured, step) = trained(False), trained(True)
    agree([found, captured])
    assert step.graph.captures == 0


def test_a_tensor_that_a_model_only_leaves_behind_costs_no_capture():
    class Telling(Net):
        def forward(self, x):
            self.seen = x.mean()
            return super().forward(x)

    model = Telling()
    step = graphed(model, sgd(model.parameters()))
    data = batches()
    for batch in data:
        step(batch)
    assert step.graph.captures == 1
    assert model.seen.item() == pytest.approx(data[-1][0].mean().item())


class Keeping(Net):
    """Keeps a tensor in an attribute, and uses it further down."""

    def forward(self, x):
        self.scaled = 2.0 * x
        return super().forward(self.scaled)


class Carrying(Net):
    """Goes on from what the last step left, where there is something."""

    def forward(self, x):
        x = x + getattr(self, "scaled", torch.zeros(6))
        self.scaled = 0.1 * x.mean(0).detach()
        return super().forward(x)


@pytest.mark.parametrize(("kind", "captures"), [(Keeping, 1), (Carrying, 0)])
def test_a_tensor_that_is_replaced_in_each_step_matters_where_it_is_read_first(kind, captures):
    def trained(is_captured):
        torch.manual_seed(0)
        model = kind()
        optimizer = sgd(model.parameters())
        step = graphed(model, optimizer) if is_captured else plain(model, optimizer, of_model)
        return (run(step, batches()), model.state_dict()), step

    (found, _), (captured, step) = trained(False), trained(True)
    agree([found, captured])
    assert step.graph.captures == captures


def test_a_closure_that_is_written_before_it_is_read_costs_no_capture():
    output = torch.zeros(())

    def loss(model, batch):
        nonlocal output
        output = model(batch[0])
        return nn.functional.cross_entropy(output, batch[1])

    found, step = both(loss=loss)
    agree(found)
    assert step.graph.captures == 1


# --- what is replaced each time -------------------------------------------------------------------------------------


class Renewing(nn.Linear):
    """Replaces a list that it reads, as torchvision's generators of anchors do, until it is told to keep it."""

    def __init__(self):
        super().__init__(6, 3)
        self.held, self.renews = [torch.ones(3)], True

    def forward(self, x):
        kept = super().forward(x) * self.held[0]
        if self.renews:
            self.held = [self.held[0] * 1.01]
        return kept


def test_a_step_that_changes_something_each_time_is_mostly_run_without_a_look(monkeypatch):
    looks = []
    monkeypatch.setattr(GraphedStep, "_look_anew", lambda step, look=GraphedStep._look_anew: looks.append(look(step)))
    torch.manual_seed(0)
    model = Renewing()
    other = copy.deepcopy(model)
    step = graphed(model, sgd(model.parameters()))
    beside = plain(other, sgd(other.parameters()), of_model)
    losses = [(float(step(batch)), float(beside(batch))) for batch in batches(100)]
    assert [ours for ours, _ in losses] == pytest.approx([theirs for _, theirs in losses])
    assert (step.graph.captures, len(looks)) == (0, pytest.approx(30, abs=10))  # two for each step that is looked at
    with pytest.raises(RefusedError, match="a tensor or an object was replaced that the model"):
        refuse_if_never_captured(step)
    model.renews = False
    for batch in batches(300):
        step(batch)
    assert step.graph.replays > 100
    refuse_if_never_captured(step)


def test_a_step_that_has_run_a_few_times_may_still_be_captured():
    model = net()
    step = graphed(model, sgd(model.parameters()))
    step(batches()[0])
    refuse_if_never_captured(step)
