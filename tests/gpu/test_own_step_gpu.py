"""Steps of the user's own in a real CUDA graph, against plain loops over 20 steps."""

import copy
import importlib.util
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from advisor.export.python_file import python_source
from advisor.recipe.catalog import load_catalog
from advisor.step.optimizer_steps import make_capturable
from advisor.step.tuning import Tuning

pytestmark = pytest.mark.gpu
STEPS = 20
GRAPH = {"step.cuda_graph": True}
FUSED = {**GRAPH, "optimizer.implementation": "fused"}


def own_steps():
    place = Path(__file__).with_name("workloads") / "own_steps.py"
    spec = importlib.util.spec_from_file_location("workload_own_steps", place)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def by_api(settings, step, models, optimizers):
    tuning = Tuning(settings)
    tuning.prepare(*models, *optimizers)
    return tuning.own_step(step, models[0])


def by_file(settings, step, models, optimizers):
    names = {"__name__": "tuned"}
    source = python_source(load_catalog(), settings, "train", own_step=True)
    exec(compile(source, "tuned.py", "exec", dont_inherit=True), names)
    for place, model in enumerate(models):
        names["prepare"](model, optimizers[place] if place < len(optimizers) else None)
    return names["own_step"](step, models[0])


def net(out=4, dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(dropout), nn.Linear(32, out)).cuda()


def batches(count=STEPS, size=8):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 16, generator=generator).cuda() for _ in range(count)]


def loss_in(result):
    return (result["loss"] if isinstance(result, dict) else result).detach()


def nothing(*given):
    pass


def trained(make, settings=None, *, data=None, change=nothing, tuned=by_api, prepare=nothing):
    """Losses, final states and the step; ``make`` returns a step, its models and optimizers, and what else there is."""
    step, models, optimizers, rest = make()
    prepare(models, optimizers)
    run = step if settings is None else tuned(settings, step, models, optimizers)
    torch.manual_seed(2)
    losses = []
    for at, batch in enumerate(data or batches()):
        change(at, rest)
        losses.append(loss_in(run(batch)))
    states = [copy.deepcopy(model.state_dict()) for model in models]
    return [float(loss) for loss in losses], states, run


def agree(make, settings=FUSED, *, rel=2e-3, compared=True, **options):
    plain = {name: value for name, value in options.items() if name != "tuned"}
    losses, states, _ = trained(make, **plain)
    others, other_states, step = trained(make, settings, **options)
    assert others == pytest.approx(losses, rel=rel, abs=rel)
    for state, other in zip(states, other_states, strict=True):
        for name, value in state.items() if compared else ():
            torch.testing.assert_close(other[name], value, rtol=5e-3, atol=2e-3)
    return step


# --- what is captured -----------------------------------------------------------------------------------------

# A rate that float32 holds exactly: a captured step reads it in a tensor.
RATE = 2.0**-14
SMALL = {
    "dcgan": {"width": 8, "batch": 8, "rate": RATE},
    "dqn": {"width": 32, "batch": 16, "rate": RATE},
    "wgan_gp": {"width": 8, "batch": 4, "rate": RATE},
}


def as_prepared(settings):
    """Give the optimizers of a plain loop the options of a captured step's, so that both run the same kernels."""

    def prepare(models, optimizers):
        Tuning({key: value for key, value in settings.items() if key not in GRAPH}).prepare(*models, *optimizers)
        for optimizer in optimizers:
            make_capturable(optimizer, torch.device("cuda"))

    return prepare


@pytest.mark.parametrize("tuned", [by_api, by_file])
@pytest.mark.parametrize("settings", [GRAPH, FUSED])
@pytest.mark.parametrize("name", list(SMALL))
def test_steps_with_several_models_and_optimizers(name, settings, tuned, monkeypatch):
    """Such training amplifies rounding: with other kernels of the optimizer only the first losses are the same."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    built = own_steps().WORKLOADS[name]

    def make():
        torch.manual_seed(0)
        found = built(**SMALL[name])
        for model in found.models:
            model.cuda()
        return found.step, found.models, found.optimizers, None

    torch.manual_seed(3)
    data = built(**SMALL[name]).data
    batch = tuple(one.cuda() for one in data) if isinstance(data, tuple) else data.cuda()
    plain, _, _ = trained(make, data=[batch] * 3)
    alike, _, _ = trained(make, data=[batch] * STEPS, prepare=as_prepared(settings))
    losses, _, step = trained(make, settings, data=[batch] * STEPS, tuned=tuned)
    assert not step.refusal
    assert step.captured
    # Adam's first updates follow the signs of the gradients: with fused kernels the critic's part after the first step.
    alike_at_first = 1 if settings is FUSED else 3
    assert losses[:alike_at_first] == pytest.approx(plain[:alike_at_first], rel=5e-3, abs=5e-3)
    assert losses == pytest.approx(alike, rel=1e-3, abs=1e-3)


def simple(make_optimizer=torch.optim.AdamW, dropout=0.0, make_rest=lambda optimizer: None):
    def make():
        model = net(dropout=dropout)
        optimizer = make_optimizer(model.parameters(), lr=0.01)

        def step(batch):
            loss = functional.mse_loss(model(batch), batch[:, :4])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step, [model], [optimizer], make_rest(optimizer)

    return make


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])
def test_one_optimizer(optimizer):
    assert agree(simple(optimizer)).captured


def test_dropout_draws_as_a_plain_loop_does():
    step = agree(simple(dropout=0.5))
    assert step.captured


def test_a_schedule_is_followed_without_another_capture():
    def schedule(optimizer):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

    def change(at, rest):
        if at:
            rest.step()

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(lr_scheduler|cuda_graph)")
        step = agree(simple(make_rest=schedule), change=change)
    assert step.captured
    assert step.patience.replays == STEPS - 3


def test_a_shorter_last_batch_runs_in_between():
    step = agree(simple(), data=[*batches(9), *batches(1, size=3), *batches(10)])
    assert step.captured
    assert step.patience.replays == STEPS - 4


def test_gradients_are_accumulated_within_a_step():
    def make():
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

        def step(batch):
            losses = [functional.mse_loss(model(part), part[:, :4]) / 2 for part in batch.chunk(2)]
            for loss in losses:
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return sum(loss.detach() for loss in losses)

        return step, [model], [optimizer], None

    assert agree(make).captured


def mixed(dtype, scales):
    def make():
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cuda", enabled=scales)

        def step(batch):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype):
                loss = functional.mse_loss(model(batch).float(), batch[:, :4])
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss

        return step, [model], [optimizer], scaler

    return make


def test_autocast_inside_the_step():
    assert agree(mixed(torch.bfloat16, False), rel=2e-2, compared=False).captured


@pytest.mark.parametrize("settings", [GRAPH, FUSED])
def test_a_gradient_scaler_is_captured_where_its_optimizer_takes_the_scale(settings):
    """Others ask the host whether a gradient is infinite."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        step = agree(mixed(torch.float16, True), settings, rel=2e-2, compared=False)
    if settings is FUSED:
        assert step.captured, step.refusal
    else:
        assert "reads a value on the host" in step.refusal
        assert any("reads a value on the host" in str(one.message) for one in warned)


def test_average_weights_spectral_norm_and_batch_norm():
    def make():
        torch.manual_seed(0)
        normed = torch.nn.utils.spectral_norm(nn.Linear(16, 32))
        model = nn.Sequential(normed, nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)).cuda()
        average = copy.deepcopy(model[3])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step(batch):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(batch), batch[:, :4])
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for slow, now in zip(average.parameters(), model[3].parameters(), strict=True):
                    slow.lerp_(now, 0.1)
            return loss

        return step, [model, average], [optimizer], None

    step = agree(make)
    assert step.captured, step.refusal


# --- what is refused ------------------------------------------------------------------------------------------


def ending(body, **names):
    def make():
        model = net(dropout=0.2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        state = types.SimpleNamespace(**names)

        def step(batch):
            loss = functional.mse_loss(model(batch), batch[:, :4])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss + body(state, batch, loss.detach())

        return step, [model], [optimizer], state

    return make


def reads(state, batch, loss):
    return 0.1 * loss.item()


def branches(state, batch, loss):
    return 1.0 if loss > 0.5 else 0.0


def goes_to_host(state, batch, loss):
    return batch.cpu().mean().to(batch.device)


def comes_from_host(state, batch, loss):
    return state.table.to(batch.device, non_blocking=True).mean()


def depends_on_values(state, batch, loss):
    return batch[batch > 0].mean()


def draws_on_host(state, batch, loss):
    return torch.rand(8).to(batch.device).mean()


def counts_steps(state, batch, loss):
    state.steps += 1
    return 1.0 if state.steps % 3 == 0 else 0.0


def waits(state, batch, loss):
    torch.cuda.synchronize()
    return 0.0


REFUSED = [
    (reads, {}, "reads a value on the host"),
    (branches, {}, "reads a value on the host"),
    (goes_to_host, {}, "copies between the host and the GPU"),
    (comes_from_host, {"table": torch.ones(8)}, "copies between the host and the GPU"),
    (depends_on_values, {}, "shape depends on values"),
    (draws_on_host, {}, "random numbers on the host|copies between"),
    (counts_steps, {"steps": 0}, "steps each time"),
    (waits, {}, "cannot be captured"),
]


@pytest.mark.parametrize(("body", "names", "said"), REFUSED, ids=[body.__name__ for body, _, _ in REFUSED])
def test_what_cannot_be_repeated_is_refused_and_the_step_goes_on_as_before(body, names, said):
    with pytest.warns(UserWarning, match=said):
        step = agree(ending(body, **names), GRAPH)
    assert not step.captured


@pytest.mark.filterwarnings("ignore:step.cuda_graph is left out")
def test_a_capture_that_fails_leaves_the_stream_and_the_random_generator_as_they_were():
    for _ in range(2):
        _, _, step = trained(ending(waits), GRAPH)
        assert "cannot be captured" in step.refusal
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        torch.cuda.manual_seed(5)
        first = torch.rand(4, device="cuda")
        torch.cuda.manual_seed(5)
        assert torch.equal(first, torch.rand(4, device="cuda"))
    assert agree(simple(dropout=0.5)).captured, "another step can be captured"


def test_an_optimizer_that_was_not_prepared_is_named():
    def make():
        step, models, _, rest = simple()()
        other = net()
        return step, [*models, other], [torch.optim.AdamW(other.parameters())], rest

    with pytest.warns(UserWarning, match=r"AdamW counts its steps on the host: pass the optimizer to prepare"):
        agree(make, GRAPH)


def test_numbers_drawn_by_a_generator_of_its_own_are_those_of_the_plain_loop():
    def make():
        draws = torch.Generator("cuda").manual_seed(4)
        return ending(lambda state, batch, loss: torch.rand(8, device=batch.device, generator=draws).mean())()

    assert agree(make, GRAPH).captured


def test_a_generator_of_its_own_draws_on_after_a_capture_that_failed():
    def make():
        draws = torch.Generator("cuda").manual_seed(4)

        def body(state, batch, loss):
            drawn = torch.rand(8, device=batch.device, generator=draws).mean()
            torch.cuda.synchronize()
            return drawn

        return ending(body)()

    with pytest.warns(UserWarning, match="cannot be captured"):
        agree(make, GRAPH)


def test_the_step_is_still_faster_with_all_that_is_watched():
    """The comparison before each replay costs less than the launches that it saves."""
    built = own_steps()
    plain, batch = built.prepared(built.dqn)
    torch.manual_seed(0)
    found = built.dqn()
    models = [model.cuda() for model in found.models]
    tuned = by_api(FUSED, found.step, models, found.optimizers)
    assert built.step_ms(plain, batch) > 1.5 * built.step_ms(tuned, tuple(batch))
