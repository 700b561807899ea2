"""Captured steps on a stand-in for a CUDA graph: watched changes, recapture, and steps that stay eager."""

import copy
import warnings
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from graph_stand_in import RecordedGraph
from graphed_steps import STEPS, adam, agree, batches, both, captured, graphed, net, of_model, plain, run, sgd
from torch import nn
from torch.nn import functional

from advisor.recipe.plan import StepPlan
from advisor.step.graph import GraphedAroundLoss
from advisor.step.step import InferStep, OwnStep, TrainStep
from advisor.step.watch import objects_near


def counts(step):
    """The captures and the replays of a step."""
    return sum(graph.captures for graph in step.graphs), sum(graph.replays for graph in step.graphs)


# --- what is watched ------------------------------------------------------------------------------------------


def another_layer(model, optimizer):
    torch.manual_seed(3)
    model.last = nn.Linear(8, 3)
    optimizer.param_groups[0]["params"][-2:] = list(model.last.parameters())
    optimizer.state.clear()


def group_of_its_own(model, optimizer):
    optimizer.add_param_group({"params": [optimizer.param_groups[0]["params"].pop()], "lr": 0.5})


CHANGES = {
    "mode of a layer": lambda model, optimizer: model.norm.eval(),
    "frozen layer": lambda model, optimizer: model.first.requires_grad_(False),
    "another layer": another_layer,
    "weight decay": lambda model, optimizer: optimizer.param_groups[0].update(weight_decay=0.3),
    "group with a rate of its own": group_of_its_own,
    "number of the model": lambda model, optimizer: setattr(model, "scale", 0.5),
    "hook of a backward pass": lambda model, optimizer: model.last.register_full_backward_hook(
        lambda _, inputs, outputs: (2 * inputs[0],)
    ),
    "another forward": lambda model, optimizer: setattr(
        model.last, "forward", lambda x, usual=model.last.forward: 2 * usual(x)
    ),
    "hook before a layer": lambda model, optimizer: model.norm.register_forward_pre_hook(lambda _, x: (x[0] + 0.5,)),
}


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_model_or_the_optimizer_is_recorded_anew(name, make):
    def change(at, model, optimizer):
        if at == 6:
            CHANGES[name](model, optimizer)

    found, step = both(change, make=make, data=batches(18))
    agree(found)
    assert counts(step)[0] >= 2
    assert step.captured


def of_a_closure():
    factor = 1.0

    def loss(model, batch):
        return factor * of_model(model, batch)

    def assign(value):
        nonlocal factor
        factor = value

    return loss, assign


def of_a_function():
    choice = SimpleNamespace(reduce=torch.mean)

    def loss(model, batch):
        return choice.reduce(functional.cross_entropy(model(batch[0]), batch[1], reduction="none"))

    def assign(value):
        choice.reduce = torch.mean if value == 1.0 else torch.sum

    return loss, assign


def of_a_flag():
    options = SimpleNamespace(kind="whole", smooth=False)

    def loss(model, batch):
        factor = 1.0 if options.kind == "whole" else 0.5
        return factor * functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.2 * options.smooth)

    def assign(value):
        options.kind, options.smooth = ("whole", False) if value == 1.0 else ("half", True)

    return loss, assign


PLACES = [of_a_closure, of_a_flag, of_a_function]  # others: tests/loops


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_a_number_near_the_loss_is_recorded_anew(place):
    loss, assign = place()
    found, step = both(lambda at, model, optimizer: assign(1.0 if at < 6 else 0.3), loss=loss, data=batches(18))
    agree(found)
    assert counts(step)[0] == 2
    assert step.captured


@pytest.mark.compile
@pytest.mark.usefixtures("eager_backend")
def test_a_number_near_a_loss_that_is_compiled_with_the_model_is_recorded_anew(monkeypatch):
    monkeypatch.setattr(
        "advisor.step.compile._NOTICES_TRAINING", "99"
    )  # with what PyTorch before 2.12 needs around the call
    loss, assign = of_a_closure()
    found, step = both(
        lambda at, model, optimizer: assign(1.0 if at < 6 else 0.3),
        loss=loss,
        data=batches(18),
        compile_scope="with_loss",
    )
    agree(found)
    assert counts(step)[0] == 2


def test_a_number_near_a_step_of_ones_own_is_recorded_anew():
    losses = []
    for capture in (lambda step, model: step, own_step):
        loss, assign = of_a_closure()
        model = net()
        step = capture(plain(model, adam(model.parameters()), loss), model)
        losses.append(run(step, batches(18), lambda at, assign=assign: assign(1.0 if at < 6 else 0.3)))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_rates_are_copied_in_and_cost_no_capture():
    def change(at, model, optimizer):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 / (1 + at)

    found, step = both(change, make=adam)
    agree(found)
    assert counts(step)[0] == 1


def test_a_critic_that_a_plain_loop_trains_gets_the_gradients_of_a_captured_step():
    def gradients(make):
        maker, critic = net(), nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        of_critic = sgd(critic.parameters(), lr=0.01)
        step = make(maker, sgd(maker.parameters()), lambda model, batch: critic(model(batch[0])).square().mean())
        found = []
        for x, y in batches():
            of_critic.zero_grad()
            critic(x[:, :3]).mean().backward()
            step((x, y))
            found.append(critic[0].weight.grad.clone())
            of_critic.step()
        return found, step

    expected, _ = gradients(plain)
    found, step = gradients(graphed)
    assert step.captured
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


# --- what is not watched --------------------------------------------------------------------------------------


def hidden_number():
    """A number too far away to be checked: in a list in an attribute of an attribute."""
    options = SimpleNamespace(inner=SimpleNamespace(factors=[1.0]))

    def loss(model, batch):
        return options.inner.factors[0] * of_model(model, batch)

    return loss, options.inner.factors


def test_a_number_that_changes_often_is_recorded_less_and_less_and_warned_of_once():
    loss, assign = of_a_closure()
    model = net()
    step = graphed(model, sgd(model.parameters()), loss)
    with pytest.warns(UserWarning, match="again and again: a number near the step changed") as said:
        run(step, batches(4) * 60, lambda at: assign(1.0 - (at // 4) / 240))
    assert len(said) == 1
    assert counts(step)[0] <= 6


def test_recapture_mends_what_is_not_watched():
    loss, factors = hidden_number()
    model = net()
    step = graphed(model, sgd(model.parameters()), loss)
    other = net()
    reference = plain(other, sgd(other.parameters()), loss)
    for at, batch in enumerate(batches(16)):
        factors[0] = 1.0 if at < 8 else 0.3
        if at == 8:
            assert step.captured
            step.recapture()
        assert step(batch).item() == pytest.approx(reference(batch).item(), rel=1e-5)
    assert step.captured
    assert counts(step)[0] == 2


@pytest.fixture
def often_audited(monkeypatch):
    monkeypatch.setattr("advisor.step.graph.AUDIT_EVERY", 50)


def test_an_audit_finds_what_is_not_watched(often_audited):
    loss, factors = hidden_number()
    model, data = net(), batches(1)[0]
    step = graphed(model, sgd(model.parameters(), lr=1e-3), loss)
    run(step, [data] * 25)
    assert counts(step)[0] == 1
    factors[0] = 0.0
    with pytest.warns(UserWarning, match="recapture") as said:
        run(step, [data] * 50)
    assert len(said) == 1
    assert step(data).item() == 0.0
    assert counts(step)[0] == 2


def test_no_audit_warns_of_dropout(often_audited):
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    step = graphed(model, sgd(model.parameters(), lr=1e-3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(step, batches(1) * 60)
    assert counts(step)[0] == 1


# --- batches --------------------------------------------------------------------------------------------------


def test_each_form_of_a_batch_has_a_graph_and_the_ninth_runs_eagerly_with_one_warning():
    data = [batch for _ in range(8) for size in range(3, 13) for batch in batches(1, size)]
    with pytest.warns(UserWarning, match="batch") as said:
        found, step = both(data=data)
    agree(found)
    assert step.captured
    assert counts(step)[0] == 8
    assert len(said) == 1


# --- what stays eager -----------------------------------------------------------------------------------------


def test_a_loss_that_reads_a_value_on_the_host_runs_eagerly_and_says_why():
    def loss(model, batch):
        value = of_model(model, batch)
        return value * (2.0 if value.item() > 1.0 else 1.0)

    with pytest.warns(UserWarning, match="not permitted when stream is capturing") as said:
        found, step = both(loss=loss)
    agree(found)
    assert not step.captured
    assert len(said) == 1


def test_a_loss_that_counts_its_calls_runs_eagerly():
    calls, model = SimpleNamespace(made=0), net()

    def loss(model, batch):
        calls.made += 1
        return calls.made * of_model(model, batch)

    step = graphed(model, sgd(model.parameters(), lr=1e-3), loss)
    with pytest.warns(UserWarning, match="made changes in each step") as said:
        run(step, batches())
    assert len(said) == 1
    assert not step.captured
    assert calls.made == STEPS


class Centred(nn.Module):
    """Keeps a mean of its inputs, which each call replaces."""

    def __init__(self, mean):
        super().__init__()
        self.layers, self.mean = net(), mean

    def forward(self, x):
        self.mean = 0.5 * self.mean + x.detach().mean(0)
        return self.layers(x * (1 + self.mean))


@pytest.mark.parametrize(
    ("mean", "words"),
    [(nn.Buffer(torch.zeros(6)), "replaces a buffer in each step"), (torch.zeros(6), "have different results")],
)
def test_a_step_that_goes_on_from_what_it_replaced_runs_eagerly_from_the_same_state(mean, words):
    models = [Centred(mean), Centred(mean)]
    optimizers = [sgd(model.parameters()) for model in models]
    step = graphed(models[0], optimizers[0])
    with pytest.warns(UserWarning, match=words):
        losses = run(step, batches())
    assert losses == pytest.approx(run(plain(models[1], optimizers[1], of_model), batches()), rel=1e-5)


class Lion(torch.optim.Optimizer):
    """An optimizer of a library: nothing shows that its update can be captured."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in (one for one in group["params"] if one.grad is not None):
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                parameter.add_(mean.lerp(parameter.grad, 0.1).sign_(), alpha=-group["lr"])
                mean.lerp_(parameter.grad, 0.01)


@pytest.mark.parametrize("make", [Lion, lambda parameters: torch.optim.Adagrad(parameters, lr=0.1)])
def test_the_update_of_an_optimizer_that_counts_on_the_host_runs_after_each_replay(make):
    found, step = both(lambda at, model, optimizer: optimizer.param_groups[0].update(lr=0.01 * (1 + at % 3)), make=make)
    agree(found)
    assert step.captured


def test_a_scaler_lives_through_an_infinite_loss_and_is_saved():
    data = batches(10)
    data[6] = (data[6][0] * float("inf"), data[6][1])
    model, other = net(), net()
    step = graphed(model, sgd(model.parameters()), autocast="float16")
    optimizer, scaler = sgd(other.parameters()), torch.amp.GradScaler("cpu", init_scale=step.scaler.get_scale())
    for batch in data:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = of_model(other, batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert step(batch).item() == pytest.approx(loss.item(), rel=1e-2, nan_ok=True)
    assert step.scaler.state_dict() == scaler.state_dict()
    state = copy.deepcopy(step.state_dict())
    state["scaler"]["scale"] = 8.0
    step.load_state_dict(state)
    assert step.scaler.get_scale() == 8.0


def test_a_loss_that_the_host_has_a_part_in_stays_between_two_graphs():
    def loss(output, target):
        value = functional.cross_entropy(output, target)
        return value * (2.0 if value.item() > 1.0 else 1.0)

    model, other = net(), net()
    plan = StepPlan(mode="train", device="cpu", cuda_graph="around_loss")
    step = GraphedAroundLoss(TrainStep(model, sgd(model.parameters()), loss, plan), graph=lambda _: RecordedGraph())
    reference = plain(other, sgd(other.parameters()), lambda model, batch: loss(model(batch[0]), batch[1]))
    agree([(run(made, batches()), one.state_dict()) for made, one in ((reference, other), (step, model))])
    assert step.captured


# --- inference, and steps of one's own ------------------------------------------------------------------------


def test_captured_outputs_are_the_callers_and_a_training_model_keeps_its_modes():
    model = net()
    model.last.eval()
    step = captured(InferStep(model, StepPlan(mode="infer", device="cpu", grad_mode="no_grad"), evaluates=True))
    data = [x for x, _ in [*batches(6), *batches(1, size=2), *batches(2)]]
    outputs = [step(x) for x in data]
    assert step.captured
    assert [module.training for module in model.modules()] == [True, True, True, False]
    model.eval()
    with torch.no_grad():
        for x, output in zip(data, outputs, strict=True):
            torch.testing.assert_close(output, model(x))


def own_step(step, model):
    return captured(OwnStep(step, model, StepPlan(mode="train", device="cpu")))


def test_optimizers_among_the_arguments_of_a_partial_step():
    optimizer = adam(net().parameters())
    for step in (partial(run, optimizer), partial(run, optimizer=optimizer)):
        assert list(map(id, objects_near(torch.optim.Optimizer, step))) == [id(optimizer)]


def test_a_step_of_ones_own_returns_what_it_returns():
    model = net()
    train = plain(model, adam(model.parameters()), of_model)
    step = own_step(lambda batch: {"loss": train(batch), "parts": (batch[0].sum(), 3), "name": "one"}, model)
    data = batches()
    results = [step(batch) for batch in data]
    assert step.captured
    assert [(one["name"], one["parts"][1]) for one in results] == [("one", 3)] * STEPS
    assert [float(one["parts"][0]) for one in results] == pytest.approx([float(x.sum()) for x, _ in data], rel=1e-5)
    assert len({one["loss"].data_ptr() for one in results}) == STEPS


def test_what_follows_a_step_is_done_once_for_each():
    """This includes the step that runs twice, eagerly and as the first replay."""
    model = net()
    step = graphed(model, sgd(model.parameters()), loss_item="accumulated")
    losses = run(step, batches())
    assert step.captured
    assert float(step.step._loss_sum) == pytest.approx(sum(losses), rel=1e-5)


def test_a_loss_from_before_keeps_no_node_on_its_stream():
    """The nodes that add up gradients belong to the stream that made them, which a capture cannot wait for."""
    model, data = net(), batches(1)[0]
    before = functional.mse_loss(model(data[0]), torch.zeros_like(model(data[0])))

    def node(parameter):
        return parameter.expand_as(parameter).grad_fn.next_functions[0][0]

    nodes, values = [node(one) for one in model.parameters()], [one.data_ptr() for one in model.parameters()]
    step = graphed(model, sgd(model.parameters()), of_model)
    for _ in range(6):
        step(data)
    assert step.captured
    assert not {id(one) for one in nodes} & {id(node(one)) for one in model.parameters()}
    assert [one.data_ptr() for one in model.parameters()] == values
    assert before.requires_grad


def test_hooks_of_distributed_models_stay_on_their_nodes(one_rank):
    """DistributedDataParallel exchanges gradients by hooks on these nodes."""
    model, data = net(), batches(1)[0]
    ddp = nn.parallel.DistributedDataParallel(model)
    exchanged = []

    def count(state, bucket):
        exchanged.append(1)
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    ddp.register_comm_hook(None, count)
    evaluated = captured(InferStep(model, StepPlan(mode="infer", device="cpu", grad_mode="no_grad"), evaluates=True))
    trained = graphed(torch.nn.Sequential(ddp), sgd(model.parameters()))
    for _ in range(2):
        evaluated(data[0])
        trained(data)
    assert len(exchanged) == 2
