"""Captured steps against plain loops, with a graph that records operators on the CPU in place of a CUDA graph."""

import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import process_time

import pytest
import torch
from graph_stand_in import RecordedGraph
from graphed_steps import (
    STEPS,
    Lion,
    adagrad,
    adam,
    agree,
    batches,
    both,
    graphed,
    loaded_state,
    net,
    of_model,
    plain,
    sgd,
    small_state,
)
from torch import nn
from torch.nn.modules import transformer

from advisor.recipe.plan import StepPlan
from advisor.step.graph import GraphedStep
from advisor.step.step import InferStep

# --- what comes before a capture ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "ways"),
    [
        ({}, [False, False, True]),
        ({"compile_mode": "default", "compile_scope": "regional"}, [True, True, True]),
        ({"compile_mode": "default"}, [False, False, False]),
    ],
)
def test_eager_steps_go_the_way_of_the_captured_one_before_anything_is_captured(plan, ways, monkeypatch):
    """Code such as Hugging Face's attention masks looks at the batch's values unless it is captured."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    in_forward, in_updates = [], []
    note = in_forward.append  # a list that the loss adds to is noticed, and nothing would be captured

    def loss(model, batch):
        note(torch.cuda.is_current_stream_capturing())
        return of_model(model, batch)

    model = net()
    optimizer = sgd(model.parameters())
    optimizer.register_step_pre_hook(lambda *_: in_updates.append(torch.cuda.is_current_stream_capturing()))
    step = graphed(model, optimizer, loss, **plan)
    for batch in batches(3):
        step(batch)
    assert in_forward == ways
    assert in_updates == [False, False, False], "an optimizer refuses to be captured unless it is told before"


class Decoder(nn.Module):
    """PyTorch's transformer with a mask, of which it asks whether it is the causal one."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x):
        return self.layers(x, mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]))


def test_a_transformer_uses_its_mask_without_a_look_at_it(monkeypatch):
    """The look makes the host wait, which a capture forbids. Both ways compute the same."""
    torch.manual_seed(0)
    models = [Decoder(), Decoder()]
    models[1].load_state_dict(models[0].state_dict())
    asked, looks = transformer._detect_is_causal_mask, []
    monkeypatch.setattr(transformer, "_detect_is_causal_mask", lambda *given: looks.append(given) or asked(*given))
    plain_step, captured = (
        make(model, sgd(model.parameters()), lambda model, batch: model(batch).square().mean())
        for make, model in zip((plain, graphed), models, strict=True)
    )
    batches = [torch.randn(2, 5, 8) for _ in range(6)]
    losses = [plain_step(batch).item() for batch in batches]
    assert len(looks) == len(batches)
    assert [captured(batch).item() for batch in batches] == pytest.approx(losses, rel=1e-5)
    assert len(looks) == len(batches), "no captured step asked, nor those before it"
    assert captured.captured
    models[1](batches[0])
    assert len(looks) == len(batches) + 1, "outside a step everything is as it was"


# --- what a graph follows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [sgd, adam, lambda p: torch.optim.SGD(p, lr=0.1), torch.optim.AdamW])
def test_a_captured_step_is_the_plain_loop(make):
    found, step = both(make=make)
    agree(found)
    assert (step.graph.eager, step.graph.captures, step.graph.replays) == (3, 1, STEPS - 3)


def test_a_rate_that_is_assigned_is_copied_in_and_stays_what_the_loop_wrote():
    def change(at, model, optimizer):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + at)

    found, step = both(change)
    agree(found)
    assert step.graph.captures == 1
    assert step.step.optimizer.param_groups[0]["lr"] == 0.1 / STEPS


def test_a_schedule_that_is_made_after_the_capture_and_its_order_warning():
    made = {}

    def change(at, model, optimizer):
        if at == 6:
            made[id(optimizer)] = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
        elif at > 6:
            made[id(optimizer)].step()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, step = both(change)
    agree(found)
    assert step.graph.replays >= 5


@pytest.mark.parametrize("make", [sgd, adam])
def test_a_cycle_of_rates_and_momentum(make):
    made = {}

    def change(at, model, optimizer):
        if at == 0:
            made[id(optimizer)] = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=STEPS)
        else:
            made[id(optimizer)].step()

    found, step = both(change, make=make)
    agree(found)
    assert step.graph.captures == 1  # with the update outside
    assert step.graph.replays >= 6


def test_one_change_of_an_option_is_captured_again_with_the_update():
    def change(at, model, optimizer):
        if at == 6:
            optimizer.param_groups[0]["weight_decay"] = 0.5

    found, step = both(change, make=adam, data=batches(20))
    agree(found)
    assert step.graph.captures == 2
    assert step._rates is not None


def test_maximizing():
    def change(at, model, optimizer):
        optimizer.param_groups[0]["maximize"] = at >= 7

    agree(both(change)[0])


@pytest.mark.parametrize("foreach", [True, False, None])
@pytest.mark.parametrize("kind", [torch.optim.RMSprop, torch.optim.Adadelta])
def test_a_rate_that_a_loop_over_the_parameters_would_read_on_the_host(kind, foreach, monkeypatch):
    """There it would end the capture: the update stays outside the graph."""
    module = sys.modules[kind.__module__]
    monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda *_, **__: ["cpu"])

    def change(at, model, optimizer):
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + at)

    found, step = both(change, make=lambda parameters: kind(parameters, capturable=True, foreach=foreach))
    agree(found)
    assert step.graph.captures == 1
    assert (step._rates is not None) == bool(foreach)


# --- what it cannot follow ------------------------------------------------------------------------------------


def freeze_and_unfreeze(at, model, optimizer):
    if at in (5, 10):
        model.first.requires_grad_(at == 10)


def another_group(at, model, optimizer):
    if at == 0:
        optimizer.param_groups[0]["params"] = list(model.last.parameters())
        optimizer.state.clear()
    if at == 6:
        optimizer.add_param_group({"params": list(model.first.parameters()), "lr": 0.02})


def evaluation_in_between(at, model, optimizer):
    if at in (5, 8):
        model.eval()
        with torch.no_grad():
            model(torch.ones(7, 6))
        model.train()


def frozen_statistics(at, model, optimizer):
    if at == 6:
        model.norm.eval()
    if at == 11:
        model.train()


def other_memory(at, model, optimizer):
    if at == 6:
        model.last.weight.data = torch.full((3, 8), 0.1)


def another_layer(at, model, optimizer):
    if at == 6:
        torch.manual_seed(3)
        model.last = nn.Linear(8, 3)
        optimizer.param_groups[0]["params"][-2:] = list(model.last.parameters())
        optimizer.state.clear()  # fused SGD wants momentum for all or for none


def another_buffer(at, model, optimizer):
    if at == 6:
        model.norm.running_mean = torch.zeros(8)


def cleared_state(at, model, optimizer):
    if at == 6:
        optimizer.state.clear()


def loaded_model(at, model, optimizer):
    if at == 6:
        model.load_state_dict(net().state_dict())


def number_of_a_layer(at, model, optimizer):
    model.scale = 1.0 if at < 6 else 0.5


def gradients_cleared(at, model, optimizer):
    optimizer.zero_grad()


def another_forward(at, model, optimizer):
    if at == 6:
        model.last.forward = lambda x: nn.Linear.forward(model.last, x) + 0.5
    if at == 11:
        model.last.forward = lambda x: nn.Linear.forward(model.last, x) * 0.5


def dropped_later(at, model, optimizer):
    if at == 6:
        model.norm.momentum = 0.5


CHANGES = [
    freeze_and_unfreeze,
    another_group,
    evaluation_in_between,
    frozen_statistics,
    other_memory,
    another_layer,
    another_buffer,
    loaded_state,
    cleared_state,
    loaded_model,
    number_of_a_layer,
    gradients_cleared,
    another_forward,
    dropped_later,
]


@pytest.mark.parametrize("make", [sgd, adam, lambda p: torch.optim.AdamW(p, lr=0.01)], ids=["sgd", "adam", "outside"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_noticed(change, make):
    found, step = both(change, make=make, data=batches(22))
    agree(found)
    assert step.graph.captures >= 1
    assert step.captured


def another_rate(at, model, optimizer):
    optimizer.param_groups[0]["lr"] = 0.01 * (1 + at % 3)


@pytest.mark.parametrize("make", [adagrad, small_state, Lion])
@pytest.mark.parametrize("change", [another_rate, freeze_and_unfreeze, another_group, gradients_cleared])
def test_the_update_of_an_optimizer_that_counts_on_the_host_runs_after_each_replay(change, make):
    found, step = both(change, make=make, data=batches(22))
    agree(found)
    assert step.captured


def test_evaluation_and_plain_clearing_in_between_cost_no_capture():
    for change in (evaluation_in_between, gradients_cleared, loaded_model):
        assert both(change)[1].graph.captures == 1


def test_a_flag_of_pytorch_is_noticed():
    step = graphed(model := net(), sgd(model.parameters()))
    for batch in batches(6):
        step(batch)
    torch.use_deterministic_algorithms(True)
    try:
        step(batches(1)[0])
    finally:
        torch.use_deterministic_algorithms(False)
    assert not step.captured


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="from PyTorch 2.9 on")
def test_a_script_that_sets_the_precision_of_float32_by_the_newer_switches():
    """The older ones raise an error from then on."""
    step = graphed(model := net(), sgd(model.parameters()))
    for batch in batches(6):
        step(batch)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        step(batches(1)[0])
        assert not step.captured
        for batch in batches(8):
            step(batch)
        assert step.captured
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_smaller_batch_in_between_and_another_shape_that_stays():
    data = [*batches(6), *batches(1, size=3), *batches(4), *batches(1, size=3), *batches(9, size=4)]
    found, step = both(data=data)
    agree(found)
    assert step.graph.captures == 2
    assert step.graph.eager == 3 + 1 + 1 + 3


def test_small_last_batches_never_replace_the_graph():
    data = [batch for _ in range(8) for batch in (*batches(4), *batches(1, size=3))]
    found, step = both(data=data)
    agree(found)
    assert step.graph.captures == 1


def test_gradients_are_those_of_the_last_step():
    model = net()
    step = graphed(model, sgd(model.parameters()))
    for batch in [*batches(6), *batches(1, size=3), *batches(1)]:
        step(batch)
    mine = model.last.weight.grad.clone()
    other = net()
    reference = plain(other, sgd(other.parameters()), of_model)
    for batch in [*batches(6), *batches(1, size=3), *batches(1)]:
        reference(batch)
    torch.testing.assert_close(mine, other.last.weight.grad, rtol=1e-4, atol=1e-6)


# --- scaling, accumulation, state -----------------------------------------------------------------------------


def test_a_scaler_lives_through_an_infinite_loss():
    def run(is_captured):
        model = net()
        optimizer = sgd(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        step = graphed(model, optimizer, autocast="float16")
        step.step.scaler = scaler
        data = batches(10)
        data[6] = (data[6][0] * float("inf"), data[6][1])
        data[8] = (data[8][0] * float("nan"), data[8][1])
        losses = []
        for batch in data:
            if is_captured:
                losses.append(step(batch).item())
                continue
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = of_model(model, batch)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return losses, model.first.weight.detach(), scaler.state_dict()

    losses, weight, state = run(False)
    others, other_weight, other_state = run(True)
    assert others == pytest.approx(losses, rel=1e-2, nan_ok=True)
    torch.testing.assert_close(other_weight, weight, rtol=1e-2, atol=1e-3)
    assert other_state == state
    assert state["scale"] == 2.0**8


def test_accumulation_is_refused_in_a_captured_step():
    model = net()
    with pytest.raises(ValueError, match=r"leave out step\.accumulate"):
        graphed(model, sgd(model.parameters()), accumulate=2)


def test_the_state_of_a_captured_step_is_that_of_its_step():
    model = net()
    step = graphed(model, sgd(model.parameters()), autocast="float16")
    assert step.scaler is step.step.scaler is not None
    state = step.state_dict()
    state["scaler"]["scale"] = 8.0
    step.load_state_dict(state)
    assert step.scaler.get_scale() == 8.0


# --- inference ------------------------------------------------------------------------------------------------


def infer(model, graph=None):
    plan = StepPlan(mode="infer", device="cpu", grad_mode="no_grad")
    return GraphedStep(InferStep(model, plan, evaluates=True), graph or RecordedGraph())


def test_captured_outputs_are_the_callers():
    model = net()
    step = infer(model)
    data = [x for x, _ in [*batches(6), *batches(1, size=2), *batches(2)]]
    outputs = [step(x) for x in data]
    assert step.graph.captures == 1
    model.eval()
    with torch.no_grad():
        for x, output in zip(data, outputs, strict=True):
            torch.testing.assert_close(output, model(x))


class SlowGraph(RecordedGraph):
    """Lets other threads run while it replays."""

    def replay(self):
        time.sleep(0.002)
        super().replay()


def test_threads_that_call_one_captured_step_get_their_own_outputs():
    model = net().eval()
    step = infer(model, SlowGraph())
    data = [x for x, _ in batches(24)]
    with ThreadPoolExecutor(4) as threads:
        outputs = [step(x) for x in data[:4]] + list(threads.map(step, data[4:]))
    assert (step.graph.captures, step.graph.replays) == (1, 21)
    with torch.no_grad():
        for x, output in zip(data, outputs, strict=True):
            torch.testing.assert_close(output, model(x))


def test_a_captured_inference_step_keeps_the_modes_of_a_training_model():
    model = net()
    model.last.eval()
    step = infer(model)
    for x, _ in batches(8):
        step(x)
    assert step.graph.replays == 5
    assert [module.training for module in model.modules()] == [True, True, True, False]
    model.eval()
    step(batches(1)[0][0])  # evaluated by the loop now: another state, the same result
    assert not any(module.training for module in model.modules())


# --- cost -----------------------------------------------------------------------------------------------------


def test_looking_for_changes_is_cheap():
    """As cheap as 1,200 additions in Python, 30 us on slow cores: in turn, since shared cores change their speed."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.1))]
    model = nn.Sequential(*layers)
    step = graphed(model, sgd(model.parameters()), lambda model, batch: model(batch[0]).sum())
    for batch in [(torch.ones(4, 8),)] * 6:
        step(batch)

    def additions():
        total = 0
        for number in range(400):
            total += number

    def seconds(call):
        started = process_time()
        for _ in range(100):
            call()
        return process_time() - started

    assert median(seconds(step._changed) / seconds(additions) for _ in range(20)) < 3
