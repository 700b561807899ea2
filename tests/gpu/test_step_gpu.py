"""Steps captured in a real CUDA graph against plain loops, through the public API and the exported file."""

import copy
import time
import timeit
from statistics import median

import pytest
import torch
from gpu_steps import CAPTURED, adam, batches, by_api, net, sgd
from graphed_steps import STEPS, Lion, Net, adagrad, loaded_state, plain, small_state
from torch import nn

from advisor.export.python_file import python_source
from advisor.recipe.catalog import load_catalog
from advisor.recipe.plan import StepPlan
from advisor.step.graph import CudaGraph
from advisor.step.graph import GraphedStep
from advisor.step.step import TrainStep
from advisor.step.tuning import Tuning

pytestmark = pytest.mark.gpu
FUSED = {"step.cuda_graph": True, "optimizer.implementation": "fused"}


def of_model(model, batch):
    return nn.functional.cross_entropy(model(batch[0].cuda()), batch[1].cuda())


def by_file(settings, model, optimizer, loss):
    names: dict = {"__name__": "tuned"}
    exec(compile(python_source(load_catalog(), settings, "train"), "tuned.py", "exec", dont_inherit=True), names)
    model, optimizer, _ = names["prepare"](model, optimizer)
    return model, optimizer, names["train_step"](model, optimizer, loss)


def trained(change, make, *, settings=None, loss=of_model, data=None, tuned=by_api):
    """Losses, final state and step of a loop; ``change(at, model, optimizer, memory)`` is called before each step."""
    model = net()
    optimizer = make(model.parameters())
    step = plain(model, optimizer, loss)
    if settings is not None:
        model, optimizer, step = tuned(settings, model, optimizer, loss)
    losses, memory = [], {}
    for at, batch in enumerate(data or batches()):
        change(at, model, optimizer, memory)
        losses.append(step(batch))
    return [loss.item() for loss in losses], copy.deepcopy(model.state_dict()), step


def agree(change, make, settings=CAPTURED, **options):
    losses, state, _ = trained(change, make, **options)
    others, other_state, step = trained(change, make, settings=settings, **options)
    assert others == pytest.approx(losses, rel=2e-3)
    for name, value in state.items():
        torch.testing.assert_close(other_state[name], value, rtol=5e-3, atol=5e-4)
    return step


def nothing(at, model, optimizer, memory):
    pass


def assigned_rate(at, model, optimizer, memory):
    for group in optimizer.param_groups:
        group["lr"] = 0.05 / (1 + at)


def of_schedule(make_schedule):
    def change(at, model, optimizer, memory):
        if at == 0:
            memory["schedule"] = make_schedule(optimizer)
        else:
            memory["schedule"].step()

    return change


lambda_schedule = of_schedule(lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: 0.8**at))
one_cycle = of_schedule(lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=STEPS))


def evaluation_in_between(at, model, optimizer, memory):
    if at in (5, 8):
        model.eval()
        with torch.no_grad():
            model(torch.ones(5, 6, device="cuda"))
        model.train()


def frozen_statistics(at, model, optimizer, memory):
    if at == 6:
        model.norm.eval()


def unfrozen(at, model, optimizer, memory):
    if at in (0, 6):
        model.last.requires_grad_(at == 6)


def added_group(at, model, optimizer, memory):
    if at == 0:
        optimizer.param_groups[0]["params"] = [model.last.weight]
    if at == 6:
        optimizer.add_param_group({"params": [model.first.weight, model.last.bias], "lr": 0.02})


def other_memory(at, model, optimizer, memory):
    if at == 6:
        model.last.weight.data = torch.full_like(model.last.weight, 0.1)


def other_decay(at, model, optimizer, memory):
    if at == 6:
        optimizer.param_groups[0]["weight_decay"] = 0.3


def other_number(at, model, optimizer, memory):
    model.scale = 1.0 if at < 6 else 0.5


CHANGES = [
    nothing,
    assigned_rate,
    lambda_schedule,
    evaluation_in_between,
    frozen_statistics,
    loaded_state,
    unfrozen,
    added_group,
    other_memory,
    other_decay,
    other_number,
]
NAMES = [
    "nothing",
    "assigned_rate",
    "lambda_schedule",
    "evaluation",
    "frozen_statistics",
    "loaded_optimizer",
    "unfrozen",
    "added_group",
    "other_memory",
    "other_decay",
    "other_number",
]


@pytest.mark.parametrize("settings", [CAPTURED, FUSED], ids=["captured", "fused"])
@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("change", CHANGES, ids=NAMES)
def test_a_captured_step_does_what_the_plain_loop_does(change, make, settings):
    if settings is FUSED and make is sgd and change in (added_group, unfrozen):
        pytest.skip("fused SGD wants momentum for all parameters or for none")
    step = agree(change, make, settings)
    assert isinstance(step, GraphedStep)


@pytest.mark.parametrize("make", [adagrad, small_state, Lion])
@pytest.mark.parametrize("change", [assigned_rate, loaded_state, unfrozen, added_group, other_memory])
def test_the_update_of_an_optimizer_that_counts_on_the_host_runs_after_each_replay(change, make):
    step = agree(change, make, CAPTURED)
    assert step.captured


@pytest.mark.parametrize("foreach", [True, False, None])
@pytest.mark.parametrize("kind", [torch.optim.RMSprop, torch.optim.Adadelta])
def test_a_rate_that_a_loop_over_the_parameters_would_read_on_the_host(kind, foreach):
    step = agree(assigned_rate, lambda parameters: kind(parameters, foreach=foreach))
    assert step.captured
    assert (step._rates is None) == (foreach is False)


@pytest.mark.parametrize("make", [sgd, adam])
def test_a_cycle_of_momentum_leaves_the_update_outside_and_is_captured_again(make):
    step = agree(one_cycle, make, FUSED)
    assert step.captured


@pytest.mark.parametrize(
    "change", [nothing, assigned_rate, one_cycle, unfrozen], ids=["nothing", "rate", "cycle", "unfrozen"]
)
def test_the_exported_file_does_the_same(change):
    step = agree(change, adam, FUSED, tuned=by_file)
    assert type(step).__name__ == "GraphedStep"
    assert step.captured


def test_a_captured_step_is_replayed_with_the_update_inside():
    _, _, step = trained(nothing, adam, settings=CAPTURED)
    assert step.patience.replays == STEPS - 3
    assert step._rates is not None


def test_smaller_last_batches():
    data = [*batches(6), *batches(1, size=3), *batches(6), *batches(1, size=3)]
    step = agree(nothing, adam, data=data)
    assert step.captured


def test_a_python_value_in_the_batch():
    def weighted(model, batch):
        return batch["weight"] * of_model(model, (batch["x"], batch["y"]))

    weights = [1.0] * 6 + [0.3] * 8
    data = [{"x": x, "y": y, "weight": weight} for (x, y), weight in zip(batches(), weights, strict=True)]
    assert agree(nothing, sgd, loss=weighted, data=data).captured


class Graphs:
    """A batch as PyTorch Geometric's: tensors behind a store, moved by the object itself, in place."""

    class Store(dict):
        pass

    def __init__(self, x, y):
        self._store = Graphs.Store(x=x, y=y)

    @property
    def x(self):
        return self._store["x"]

    @property
    def y(self):
        return self._store["y"]

    def to(self, device, *args, non_blocking=False):
        for name, value in self._store.items():
            self._store[name] = value.to(device, non_blocking=non_blocking)
        return self


def test_a_batch_that_is_an_object():
    def loss(model, batch):
        return of_model(model, (batch.x, batch.y))

    data = [Graphs(x, y) for x, y in batches()]
    losses, _, _ = trained(nothing, adam, loss=loss, data=data)
    others, _, step = trained(nothing, adam, settings=CAPTURED, loss=loss, data=[Graphs(x, y) for x, y in batches()])
    assert others == pytest.approx(losses, rel=2e-3)
    assert step.captured


def test_packed_sequences_of_changing_lengths():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, packed):
            padded, _ = nn.utils.rnn.pad_packed_sequence(packed)
            return self.head(torch.tanh(self.first(padded)).cumsum(0)[-1])

    generator = torch.Generator().manual_seed(2)
    data = []
    for lengths in [(5, 3)] * 6 + [(4, 4)] * 6:
        sequences = [torch.randn(length, 4, generator=generator) for length in lengths]
        data.append((nn.utils.rnn.pack_sequence(sequences), torch.tensor([0, 1])))

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch[0].to("cuda")), batch[1].cuda())

    torch.manual_seed(0)
    model = Reader().cuda()
    twin = copy.deepcopy(model)
    step_of_twin = plain(twin, adam(twin.parameters()), loss)
    expected = [step_of_twin(batch).item() for batch in data]
    _, _, step = by_api(CAPTURED, model, adam(model.parameters()), loss)
    assert [step(batch).item() for batch in data] == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("settings", [{}, CAPTURED], ids=["eager", "captured"])
def test_inference_in_between_keeps_the_modes_and_the_statistics(settings):
    def run(settings, infers):
        tuning = Tuning({**settings, "infer.grad": "no_grad"})
        model = net()
        model, optimizer = tuning.prepare(model, adam(model.parameters()))
        step, infer = tuning.train_step(model, optimizer, of_model), tuning.infer(model)
        losses, outputs = [], []
        for batch in batches():
            losses.append(step(batch).item())
            if infers:
                outputs.append(infer(batch[0]))
                expected = copy.deepcopy(model).eval()(batch[0].cuda()).detach()
                torch.testing.assert_close(outputs[-1], expected, rtol=1e-3, atol=1e-4)
            assert all(module.training for module in model.modules())
        assert len({output.data_ptr() for output in outputs}) == len(outputs)
        return losses, model.norm.running_mean.clone()

    losses, mean = run({}, infers=False)
    others, other_mean = run(settings, infers=True)
    assert others == pytest.approx(losses, rel=2e-3)
    torch.testing.assert_close(other_mean, mean, rtol=1e-3, atol=1e-4)


def test_a_graph_is_captured_on_the_device_of_its_first_steps():
    """On another one it would record nothing, and a replay would compute nothing."""
    for number in range(torch.cuda.device_count()):
        device = torch.device("cuda", number)
        graph, total, captured = CudaGraph(device), torch.zeros((), device=device), []

        def add(total=total, captured=captured):
            captured.append(torch.cuda.is_current_stream_capturing())
            total.add_(1)

        graph.warm_up(add)
        graph.capture(add)
        graph.replay()
        assert captured == [False, True]
        assert total.item() == 2


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed")
def test_a_captured_step_of_a_model_on_another_gpu_than_the_current_one():
    assert torch.cuda.current_device() == 0
    found = []
    for settings in ({}, CAPTURED):
        torch.manual_seed(0)
        model = Net(16).to("cuda:1")
        step = by_api(settings, model, adam(model.parameters()), nn.CrossEntropyLoss())[2]
        found.append(([step(batch).item() for batch in batches()], model.first.weight.detach()))
    (losses, weight), (others, other_weight) = found
    assert step.captured
    assert others == pytest.approx(losses, rel=2e-3)
    torch.testing.assert_close(other_weight, weight, rtol=1e-3, atol=1e-4)


def sloped(model, batch):
    inputs = batch[0].requires_grad_()
    output = model(inputs)
    (slope,) = torch.autograd.grad(output.square().sum(), inputs, create_graph=True)
    return nn.functional.cross_entropy(output, batch[1]) + slope.square().mean()


@pytest.mark.parametrize("settings", [CAPTURED, FUSED], ids=["captured", "fused"])
def test_a_loss_that_wants_gradients_of_its_inputs(settings):
    data = [(x.cuda(), y.cuda()) for x, y in batches()]
    assert agree(nothing, adam, settings, loss=sloped, data=data).captured


def test_gradients_for_another_optimizer_add_up_until_its_step():
    def trained_in_turns(settings):
        model = net()
        trunk = torch.optim.SGD([*model.first.parameters(), *model.norm.parameters()], lr=0.05)
        _, _, step = by_api(settings, model, adam(model.last.parameters()), nn.CrossEntropyLoss())
        losses = []
        for at, batch in enumerate(batches(20)):
            losses.append(step(batch).item())
            if at % 3 == 2:
                trunk.step()
                trunk.zero_grad()
        return losses, model.first.weight.detach(), step

    losses, weight, _ = trained_in_turns({})
    others, other_weight, step = trained_in_turns(CAPTURED)
    assert step.captured
    assert others == pytest.approx(losses, rel=2e-3)
    torch.testing.assert_close(other_weight, weight, rtol=1e-3, atol=1e-4)


def test_reduce_overhead_gives_outputs_and_losses_of_their_own():
    tuning = Tuning({"compile.mode": "reduce-overhead", "infer.grad": "no_grad"})
    model = net().eval()
    reference = copy.deepcopy(model)
    infer = tuning.infer(model)
    inputs = [x for x, _ in batches(6)]
    outputs = [infer(x) for x in inputs]
    with torch.no_grad():
        for x, output in zip(inputs, outputs, strict=True):
            torch.testing.assert_close(output, reference(x.cuda()), rtol=1e-3, atol=1e-4)
    agree(assigned_rate, sgd, {"compile.mode": "reduce-overhead"})


def test_a_float16_scaler_lives_through_an_infinite_loss_in_a_captured_step():
    """The update asks the host, so it stays outside the graph."""

    def data():
        made = batches(12)
        made[8] = (made[8][0] * float("inf"), made[8][1])
        return made

    model = net()
    optimizer, scaler = sgd(model.parameters()), torch.amp.GradScaler("cuda", init_scale=2.0**10)
    losses = []
    for batch in data():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = of_model(model, batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())

    other = net()
    plan = StepPlan(mode="train", device="cuda:0", autocast="float16", cuda_graph=True)
    step = GraphedStep(TrainStep(other, sgd(other.parameters()), of_model, plan))
    step.step.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    others = [step(batch).item() for batch in data()]
    assert step.captured
    assert others == pytest.approx(losses, rel=2e-2, nan_ok=True)
    assert step.scaler.state_dict() == scaler.state_dict()
    assert scaler.get_scale() == 2.0**9


class Deep(nn.Module):
    """Of a size whose captured step takes about 0.3 ms on an H100."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(10)))
        self.last = nn.Linear(512, 3)

    def forward(self, x):
        return self.last(self.layers(x))


def test_the_check_costs_little_beside_a_replay(monkeypatch):
    """At most 3 % of a step of 0.3 ms: the host looks for changes while the device is busy."""
    torch.manual_seed(0)
    model = Deep().cuda()
    model, _, step = by_api(FUSED, model, adam(model.parameters()), of_model)
    batch = (torch.randn(256, 512, device="cuda"), torch.arange(256, device="cuda") % 3)

    def loop_s(steps=300):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            step(batch)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps

    loop_s()
    assert step.captured
    looking_s = min(timeit.repeat(step._changed, number=200, repeat=10)) / 200
    ratios, step_s = [], []
    for _ in range(15):
        checked_s = loop_s()
        with monkeypatch.context() as blind:
            blind.setattr(step, "_changed", lambda: "")
            ratios.append(checked_s / loop_s())
        step_s.append(checked_s)
    print(f"looking takes {1e6 * looking_s:.1f} us of a step of {1e6 * median(step_s):.0f}: {median(ratios):.4f} times")
    assert median(ratios) < 1.03
