from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torchvision
from facts import LINEAR, adamw_facts, cpu_facts, gpu_facts, profile_facts, sgd_facts
from torch import nn
from torch._dynamo.utils import counters

from advisor.catalog import load_catalog
from advisor.errors import TargetError, UsageError
from advisor.export.python_file import python_source
from advisor.plan import StepPlan
from advisor.portable.inplace import activations_in_place, inplace_sites
from advisor.portable.pointwise import fusable_chains
from advisor.portable.tracing import CannotTraceError
from advisor.recipe import Components
from advisor.records import Mode, Numerics, TargetSpec
from advisor.runtime.apply import apply_settings
from advisor.runtime.compilation import with_tensor_rates
from advisor.runtime.step import TrainStep, make_step
from advisor.runtime.tuning import Tuning

CATALOG = load_catalog()
COMPILES = ("compile_scope", "compile_dynamic", "compile_optimizer", "cpu_freeze", "fuse_pointwise")


@pytest.fixture(autouse=True)
def _fresh_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    limit = torch._dynamo.config.recompile_limit
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()
    torch._dynamo.config.recompile_limit = limit
    if "torch._inductor.config" in sys.modules:
        torch._inductor.config.freezing = False


@pytest.fixture
def eager_backend(monkeypatch):
    """`torch.compile` that traces and guards, but generates no code: what is compiled can be counted in seconds."""
    usual = torch.compile

    def traced(model=None, **options):
        options.pop("mode", None)
        if model is None:  # a decorator with options
            return lambda function: usual(function, **options, backend="eager")
        return usual(model, **options, backend="eager")

    monkeypatch.setattr(torch, "compile", traced)


@pytest.fixture
def compilers(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("advisor.toolchain.shutil.which", lambda name: f"/bin/{name}")


class Block(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))


class Layers(nn.Module):
    def __init__(self, blocks, width=8):
        super().__init__()
        self.layers = nn.ModuleList(blocks)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def own_blocks():
    return Layers(Block() for _ in range(5))


def pytorchs_blocks():
    return Layers(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(4))


def sequential_blocks():
    return Layers(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))


class Chains(nn.Module):
    """Two chains of pointwise operations around what is not pointwise, one of them in place."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.relu, self.dropout, self.head = nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8, 4)

    def forward(self, images):
        x = self.norm(self.conv(images))
        x += 0.5
        x = self.relu(x).mean((2, 3))
        y = torch.sigmoid(x * 1.5) * 2
        return self.head(self.dropout(y))


class Norms(nn.Module):
    """A small U-Net: skip connections read an activation again, activations come after norms, sums and a view."""

    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1)
        self.deep, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.first, self.second, self.third, self.last = nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.1), nn.ReLU()
        self.head = nn.Linear(8, 4)

    def forward(self, images):
        skip = self.first(self.down(images))
        deep = self.second(self.norm(self.deep(nn.functional.max_pool2d(skip, 2))))
        deep = nn.functional.interpolate(deep, scale_factor=2)
        x = self.third(self.up(torch.cat([skip, deep], 1)))
        x = self.last(x.mean((2, 3)) + 0.1)
        return self.head(x)


class MustCopy(nn.Module):
    """Activations whose input is read again, saved for the backward pass, a view, or the caller's own."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.read_again, self.of_saved, self.of_view, self.of_input = nn.ReLU(), nn.ReLU(), nn.ReLU(), nn.ReLU()
        self.negative = nn.LeakyReLU(-0.2)
        self.smooth, self.of_written = nn.SiLU(), nn.ReLU()

    def forward(self, x):
        given = self.of_input(x)
        y = self.a(given)
        y = y + self.read_again(y)
        y = self.of_saved(torch.exp(-y.square()))
        z = same = self.b(y)
        z += 1
        y = self.of_written(z) + same
        y = self.of_view(self.b(y).view(-1, 2, 4)).flatten(1)
        return self.negative(self.a(y)) + self.smooth(self.b(y))


def parts(model, mode=Mode.TRAIN, data=None, optimizer="SGD", **plan):
    model.train(mode is Mode.TRAIN)
    made = getattr(torch.optim, optimizer)(model.parameters(), lr=0.05) if mode is Mode.TRAIN else None
    return Components(model, made, data, StepPlan(mode=mode, device="cpu", **plan))


def applied(model, settings, mode=Mode.TRAIN, **options):
    components = parts(model, mode, **options)
    apply_settings(CATALOG, components, settings)
    return components


def by_apply(recipe_id, value, model, mode=Mode.TRAIN):
    return applied(model, {CATALOG[recipe_id].key: value}, mode).model


def by_code(recipe_id, value, model, mode=Mode.TRAIN):
    model.train(mode is Mode.TRAIN)
    namespace = {"torch": torch, "model": model, "device": torch.device("cpu")}
    exec(CATALOG[recipe_id].code(value), namespace)
    return namespace["model"]


both_ways = pytest.mark.parametrize("effect", [by_apply, by_code], ids=["apply", "code"])


def proposed(recipe_id, facts):
    return [candidate.value for candidate in CATALOG.propose(facts, only=[recipe_id]).candidates]


def reason(recipe_id, facts):
    proposals = CATALOG.propose(facts, only=[recipe_id])
    assert not proposals.candidates
    return proposals.skipped[recipe_id]


def twin(make):
    torch.manual_seed(0)
    model = make()
    return model, copy.deepcopy(model)


def gradients_of(model, inputs, seed=0):
    """Output and gradients, of the parameters and of the input, with random streams from a seed."""
    torch.manual_seed(seed)
    inputs = inputs.clone().requires_grad_()
    output = model(inputs)
    output.square().sum().backward()
    return output, [inputs.grad, *(p.grad for p in model.parameters())]


# --- compile.mode ---------------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize(("value", "graphs"), [("default", 1), ("max-autotune-no-cudagraphs", 1), ("none", 0)])
def test_the_model_is_compiled_as_a_whole_or_not_at_all(effect, value, graphs, eager_backend):
    model, reference = twin(own_blocks)
    back, inputs = effect("compile", value, model, Mode.INFER), torch.randn(2, 8)
    with torch.no_grad():
        torch.testing.assert_close(back(inputs), reference.eval()(inputs))
    assert counters["frames"]["ok"] == graphs
    assert getattr(back, "_orig_mod", back) is model


# --- compile.scope --------------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("make", [own_blocks, pytorchs_blocks, sequential_blocks])
def test_blocks_are_compiled_once_and_the_model_stays_itself(effect, make, eager_backend):
    model, reference = twin(make)
    names = list(model.state_dict())
    back = effect("compile_scope", "regional", model, Mode.INFER)
    inputs = torch.randn(2, 3, 8)
    reference.eval()
    with torch.no_grad():
        torch.testing.assert_close(back(inputs), reference(inputs))
    assert back is model
    assert list(model.state_dict()) == names
    # One graph for all blocks: the layers share their code, the head is not compiled.
    assert counters["frames"]["ok"] == 1


def test_a_copy_of_a_model_with_compiled_blocks_computes_with_its_own_weights(eager_backend):
    for make in (own_blocks, sequential_blocks):
        model = by_apply("compile_scope", "regional", make(), Mode.INFER)
        other = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
            assert not other(torch.ones(2, 8)).any()
            assert model(torch.ones(2, 8)).any()


def test_blocks_of_many_shapes_all_stay_compiled(eager_backend):
    class Stage(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.blocks = nn.Sequential(Block(width), Block(width))
            self.wider = nn.Linear(width, width + 1)

        def forward(self, x):
            return self.wider(self.blocks(x))

    model, reference = twin(lambda: nn.Sequential(*(Stage(width) for width in range(4, 16))))
    before = torch._dynamo.config.recompile_limit
    model = applied(model, {"compile.scope": "regional", "compile.dynamic": False}, Mode.INFER).model
    with torch.no_grad():
        torch.testing.assert_close(model(torch.ones(2, 4)), reference(torch.ones(2, 4)))
    assert counters["frames"]["ok"] == 12 > before
    assert not counters["unimplemented"]


def test_regions_train_as_the_eager_model_does(eager_backend):
    model, reference = twin(own_blocks)
    expected = gradients_of(reference, torch.randn(4, 8, generator=torch.Generator().manual_seed(1)))
    compiled = by_apply("compile_scope", "regional", model)
    found = gradients_of(compiled, torch.randn(4, 8, generator=torch.Generator().manual_seed(1)))
    torch.testing.assert_close(found, expected)


def test_a_model_without_repeated_blocks_cannot_be_compiled_by_region():
    with pytest.raises(ValueError, match="repeats no block"):
        by_apply("compile_scope", "regional", nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


def test_the_scope_alone_means_the_default_mode_and_goes_with_the_others():
    for settings, mode in (
        ({"compile.scope": "regional"}, "default"),
        ({"compile.dynamic": True}, "default"),
        ({"compile.freezing": True}, "default"),
        ({"compile.scope": "regional", "compile.mode": "reduce-overhead"}, "reduce-overhead"),
        ({"compile.scope": "with_loss"}, "default"),
        ({"compile.scope": "model"}, "none"),
        ({}, "none"),
    ):
        components = parts(own_blocks(), Mode.INFER)
        for recipe, value in CATALOG.in_order(settings):
            recipe.apply(components, value)
        assert components.plan.compiles_with == mode, settings
    assert "how the model is compiled" in CATALOG["compile"].conflict("none", {"compile.scope": "regional"})


def test_candidates_of_the_scope(compilers):
    blocks = (("GPT2Block", 12),)
    assert proposed("compile_scope", gpu_facts(repeated_blocks=blocks, families=LINEAR)) == ["regional"]
    assert proposed("compile_scope", cpu_facts(repeated_blocks=blocks, families=LINEAR)) == ["regional"]
    assert "repeats no block" in reason("compile_scope", gpu_facts())
    assert "too old for Triton" in reason(
        "compile_scope", gpu_facts(capability=(6, 0), repeated_blocks=blocks, families=LINEAR)
    )
    assert "differ in shape" in reason("compile_scope", gpu_facts(repeated_blocks=blocks))
    why = CATALOG["compile_scope"].why(gpu_facts(repeated_blocks=blocks), "regional")
    assert "repeats GPT2Block 12 times" in why


def test_the_loss_is_compiled_with_the_model_where_it_takes_time(compilers):
    loses = profile_facts(phases={"forward": 98.0, "loss": 2.0})
    assert proposed("compile_scope", gpu_facts(profile=loses)) == ["with_loss"]
    assert proposed("compile_scope", gpu_facts(profile=loses, repeated_blocks=(("B", 3),), families=LINEAR)) == [
        "with_loss",
        "regional",
    ]
    assert "2.0 %" in CATALOG["compile_scope"].why(gpu_facts(profile=loses), "with_loss")
    cheap = profile_facts(phases={"forward": 99.9, "loss": 0.1})
    assert "repeats no block" in reason("compile_scope", gpu_facts(profile=cheap))
    assert "repeats no block" in reason("compile_scope", gpu_facts(mode=Mode.INFER, profile=loses))


def mean_square(model, batch):
    inputs, target = batch
    return (model(inputs) - target).square().mean()


@pytest.mark.parametrize("exported", [False, True])
@pytest.mark.parametrize("loss", [nn.MSELoss(), mean_square])
def test_model_and_loss_are_compiled_as_one(loss, exported, eager_backend):
    model, reference = twin(own_blocks)
    batch = (torch.randn(4, 8), torch.randn(4, 4))
    expected = train(make_step(parts(reference), loss), batch)
    torch._dynamo.reset()
    counters.clear()
    if exported:
        namespace: dict = {}
        exec(python_source(CATALOG, {"compile.scope": "with_loss"}, "train"), namespace)
        prepared, optimizer, _ = namespace["prepare"](model, torch.optim.SGD(model.parameters(), lr=0.05))
        step = namespace["train_step"](prepared, optimizer, loss)
    else:
        components = applied(model, {"compile.scope": "with_loss"})
        prepared, step = components.model, make_step(components, loss)
    assert prepared is model
    assert train(step, batch) == pytest.approx(expected, rel=1e-5)
    # One graph holds the forward pass and the loss.
    assert counters["frames"]["ok"] == 1
    assert counters["stats"]["unique_graphs"] == 1


def train(step, batch):
    return [float(step(batch)) for _ in range(3)]


def test_a_model_that_computes_its_own_loss_is_compiled_whole(eager_backend):
    class OwnLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, inputs, labels):
            return {"loss": (self.layer(inputs) - labels).square().mean()}

    model, reference = twin(OwnLoss)
    batch = {"inputs": torch.randn(2, 4), "labels": torch.randn(2, 4)}
    expected = train(make_step(parts(reference), None), batch)
    counters.clear()
    assert train(make_step(applied(model, {"compile.scope": "with_loss"}), None), batch) == pytest.approx(expected)
    assert counters["stats"]["unique_graphs"] == 1


def test_without_training_the_scope_with_the_loss_is_the_model(eager_backend):
    model, reference = twin(own_blocks)
    compiled = applied(model, {"compile.scope": "with_loss"}, Mode.INFER).model
    with torch.no_grad():
        torch.testing.assert_close(compiled(torch.ones(2, 8)), reference.eval()(torch.ones(2, 8)))
    assert counters["frames"]["ok"] == 1


# --- compile.dynamic ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "graphs"), [("auto", 2), (True, 1), (False, 3)])
def test_how_often_three_lengths_compile(value, graphs, eager_backend):
    settings = {"compile.mode": "default", "compile.dynamic": value}
    model = applied(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), settings, Mode.INFER).model
    with torch.no_grad():
        for length in (3, 5, 7):
            model(torch.ones(length, 8))
    assert counters["frames"]["ok"] == graphs


@pytest.mark.parametrize("value", [True, False])
def test_dynamic_by_its_code(value, eager_backend):
    model, reference = twin(lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    compiled = by_code("compile_dynamic", value, model, Mode.INFER)
    for length in (3, 5, 7):
        torch.testing.assert_close(compiled(torch.ones(length, 8)), reference(torch.ones(length, 8)))
    assert counters["frames"]["ok"] == (1 if value else 3)


def test_candidates_of_dynamic(compilers):
    assert proposed("compile_dynamic", gpu_facts(varying_shapes=True)) == [True, False]
    assert reason("compile_dynamic", gpu_facts()) == "every batch that was looked at has the same shapes"
    assert CATALOG["compile_dynamic"].accepts(True)
    assert not CATALOG["compile_dynamic"].accepts("true")


# --- compile.pointwise_only -----------------------------------------------------------------------------------


IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(2))


@both_ways
def test_chains_are_compiled_and_nothing_else(effect, eager_backend):
    model, reference = twin(Chains)
    names = set(model.state_dict())
    fused = effect("fuse_pointwise", True, model)
    found, expected = gradients_of(fused, IMAGES), gradients_of(reference, IMAGES)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(fused.norm.running_mean, reference.norm.running_mean)
    assert counters["frames"]["ok"] == 2
    assert set(fused.state_dict()) == names
    assert fused.conv.weight is model.conv.weight
    assert fused.training


def test_fused_chains_follow_train_and_eval(eager_backend):
    model, reference = twin(Chains)
    fused = by_apply("fuse_pointwise", True, model)
    fused.eval()
    reference.eval()
    torch.testing.assert_close(fused(IMAGES), reference(IMAGES))
    fused.train()
    assert not torch.equal(fused(IMAGES), fused(IMAGES)), "dropout is on again"


def test_fusing_leaves_the_model_as_it_was(eager_backend):
    model, reference = twin(Chains)
    model.norm.eval()
    by_code("fuse_pointwise", True, model.train())
    model.norm.eval()
    before = {name: module.training for name, module in model.named_modules()}
    fusable_chains(model)
    assert {name: module.training for name, module in model.named_modules()} == before
    assert model.relu.inplace
    torch.manual_seed(3)
    found = model.train()(IMAGES)
    torch.manual_seed(3)
    assert torch.equal(found, reference.train()(IMAGES))


def test_generated_code_of_chains_computes_the_same():
    model, reference = twin(Chains)
    model.dropout.p = reference.dropout.p = 0.0
    fused = by_apply("fuse_pointwise", True, model)
    torch.testing.assert_close(gradients_of(fused, IMAGES), gradients_of(reference, IMAGES), rtol=1e-4, atol=1e-5)


class Rounding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Straight(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.seen = None

    def forward(self, x):
        return Rounding.apply(torch.relu(self.layer(x) * 2))


class Branches(Straight):
    def forward(self, x):
        return torch.relu(x) + 1 if x.sum() > 0 else x


class Remembers(Straight):
    def forward(self, x):
        self.seen = self.layer(x)
        return torch.relu(self.seen * 2)


class Draws(Straight):
    def forward(self, x):
        return torch.relu(self.layer(x) + torch.randn(4))


class Optional(Straight):
    def forward(self, x, mask=None):
        return torch.relu(self.layer(x) if mask is None else x) * 2


class TwoPaths(Straight):
    def forward(self, x):
        x = nn.functional.dropout(self.layer(x), training=self.training)
        return torch.relu(x) * 2


class Unused(Straight):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(2, 2)

    def forward(self, x):
        return torch.relu(self.layer(x)) * 2


class WritesSlices(Straight):
    def forward(self, x):
        x = self.layer(x)
        x[:, 0] = 0.0
        return torch.relu(x) * 2


class WritesShared(Straight):
    def forward(self, x):
        y = self.layer(x)
        same = y
        y += 1
        return torch.relu(same * 2 + y)


class WritesBits(Straight):
    def forward(self, x):
        y = self.layer(x) > 0
        y &= x > 0
        return torch.relu(self.layer(x)) * 2 * y


def hooked():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sigmoid())
    model[0].register_forward_hook(lambda module, inputs, output: None)
    return model


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (Straight, "uses the autograd function Rounding"),
        (Branches, "has a forward that torch.fx cannot follow"),
        (Remembers, "keeps values in its forward"),
        (Draws, "makes tensors of its own"),
        (Optional, "optional arguments"),
        (TwoPaths, "takes other paths in training"),
        (Unused, "does not use"),
        (WritesSlices, "item assignment"),
        (WritesShared, "that other operations may read"),
        (WritesBits, "writes into a tensor by iand"),
        (hooked, "forward hooks"),
    ],
)
def test_models_that_a_trace_would_change_are_left_alone(make, expected):
    model = make()
    before = dict(vars(model))
    apply = torch.autograd.Function.__dict__["apply"]
    with pytest.raises(CannotTraceError, match=expected):
        fusable_chains(model)
    assert dict(vars(model)) == before
    assert torch.autograd.Function.__dict__["apply"] is apply
    assert model.training


def test_tracing_ends_after_its_time():
    model = nn.Sequential(*(nn.ReLU() for _ in range(50)))
    with pytest.raises(CannotTraceError, match="too many operations"):
        fusable_chains(model, limit_s=-1.0)


def test_shared_weights_stay_shared(eager_backend):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(8, 8)
            self.two = nn.Linear(8, 8)
            self.two.weight = self.one.weight

        def forward(self, x):
            return self.two(torch.relu(self.one(x)) * 2)

    model, reference = twin(Tied)
    fused = by_apply("fuse_pointwise", True, model)
    assert fused.one.weight is fused.two.weight is model.one.weight
    torch.testing.assert_close(gradients_of(fused, torch.ones(2, 8)), gradients_of(reference, torch.ones(2, 8)))


def test_frozen_parameters_stay_frozen(eager_backend):
    model = Chains()
    model.conv.weight.requires_grad_(False)
    fused = by_apply("fuse_pointwise", True, model)
    fused(IMAGES).sum().backward()
    assert fused.conv.weight.grad is None
    assert fused.head.weight.grad is not None


def test_candidates_of_chains(compilers):
    assert proposed("fuse_pointwise", gpu_facts(fusable_chains=8)) == [True]
    assert reason("fuse_pointwise", gpu_facts()) == "the model has no two pointwise operations in a row"
    problem = "has forward hooks, which a trace would lose"
    assert reason("fuse_pointwise", gpu_facts(fusing_problem=problem)) == f"the model {problem}"
    assert "8 chains of pointwise" in CATALOG["fuse_pointwise"].why(gpu_facts(fusable_chains=8), True)
    conflict = CATALOG["fuse_pointwise"].conflict
    assert conflict(True, {"compile.mode": "default"}).startswith("compile.mode compiles the whole model")
    assert conflict(True, {"compile.scope": "regional"})
    assert conflict(True, {"compile.mode": "none"}) is None
    assert conflict(False, {"compile.mode": "default"}) is None


# --- compile.optimizer ----------------------------------------------------------------------------------------


def losses_of(step, count=6, lr=None):
    generator = torch.Generator().manual_seed(4)
    losses = []
    for index in range(count):
        if lr is not None:
            lr(index)
        batch = torch.randn(4, 8, generator=generator), torch.randint(4, (4,), generator=generator)
        losses.append(step(batch).item())
    return losses


def set_rate(optimizer):
    def lr(index):
        for group in optimizer.param_groups:
            rate = 0.05 / (1 + index)
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    return lr


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop"])
def test_a_compiled_optimizer_trains_as_the_eager_one(optimizer, eager_backend):
    model, reference = twin(own_blocks)
    plain = make_step(parts(reference, optimizer=optimizer), nn.CrossEntropyLoss())
    expected = losses_of(plain, lr=set_rate(plain.optimizer))
    components = applied(model, {"compile.optimizer": True}, optimizer=optimizer)
    step = make_step(components, nn.CrossEntropyLoss())
    assert losses_of(step, lr=set_rate(components.optimizer)) == pytest.approx(expected, rel=1e-4)
    assert counters["frames"]["ok"] > 0


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_schedule_does_not_compile_the_optimizer_again(optimizer, eager_backend):
    components = applied(own_blocks(), {"compile.optimizer": True}, optimizer=optimizer)
    step = make_step(components, nn.CrossEntropyLoss())
    schedule = torch.optim.lr_scheduler.ExponentialLR(components.optimizer, 0.5)
    losses_of(step, 2)
    compiled = counters["frames"]["total"]
    for _ in range(4):
        schedule.step()
        losses_of(step, 1)
    assert counters["frames"]["total"] == compiled
    assert components.optimizer.param_groups[0]["lr"].item() == pytest.approx(0.05 / 16)


def test_rates_that_the_class_takes_as_numbers_only_stay_numbers():
    model = nn.Linear(2, 2)
    kept = with_tensor_rates(torch.optim.Adagrad(model.parameters(), lr=0.1), torch.device("cpu"))
    assert kept.param_groups[0]["lr"] == 0.1
    changed = with_tensor_rates(torch.optim.SGD(model.parameters(), lr=0.1), torch.device("cpu"))
    assert isinstance(changed.param_groups[0]["lr"], torch.Tensor)


def test_the_optimizers_code_trains(eager_backend):
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, targets = torch.randn(4, 8), torch.tensor([0, 1, 2, 3])
    namespace = {"torch": torch, "model": model, "optimizer": optimizer, "loss_fn": nn.CrossEntropyLoss()}
    namespace |= {"inputs": inputs, "targets": targets, "device": torch.device("cpu")}
    before = model.weight.detach().clone()
    exec(CATALOG["compile_optimizer"].code(True), namespace)
    assert not torch.equal(model.weight, before)
    assert counters["frames"]["ok"] > 0


def test_candidates_of_the_compiled_optimizer(compilers):
    assert proposed("compile_optimizer", gpu_facts(optimizer=adamw_facts())) == [True]
    assert "needs a CUDA GPU" in reason("compile_optimizer", cpu_facts())
    assert "no optimizer" in reason("compile_optimizer", gpu_facts(optimizer=None))
    assert "fused" in reason("compile_optimizer", gpu_facts(optimizer=sgd_facts(implementation="fused")))
    assert "12 tensors only" in reason("compile_optimizer", gpu_facts(optimizer=sgd_facts(tensors=12)))
    for other in (sgd_facts(name="LBFGS"), sgd_facts(name="Lion", builtin=False)):
        assert "not among" in reason("compile_optimizer", gpu_facts(optimizer=other))
    float16 = {"precision.autocast": "float16"}
    assert "GradScaler" in reason("compile_optimizer", gpu_facts(current=float16))


def test_what_a_compiled_optimizer_does_not_go_with():
    conflict = CATALOG["compile_optimizer"].conflict
    assert "one kernel" in conflict(True, {"optimizer.implementation": "fused"})
    assert "records the step" in conflict(True, {"step.cuda_graph": True})
    assert "GradScaler" in conflict(True, {"precision.autocast": "float16"})
    assert conflict(True, {"precision.autocast": "bfloat16", "optimizer.implementation": "foreach"}) is None
    assert conflict(False, {"step.cuda_graph": True}) is None


# --- compile.freezing -----------------------------------------------------------------------------------------


class FoldsNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, images):
        return self.head(torch.relu(self.norm(self.conv(images))).mean((2, 3)))


FROZEN = """
import sys
import torch
from torch._dynamo.utils import counters
sys.path.insert(0, {folder!r})
from test_recipes_compile import CATALOG, FoldsNorm, IMAGES, applied
from advisor.records import Mode
from advisor.runtime.step import make_step

torch.manual_seed(0)
model = FoldsNorm()
with torch.no_grad():
    for _ in range(3):
        model(IMAGES)
expected = model.eval()(IMAGES)
if {by_code}:
    namespace = {{"torch": torch, "model": model}}
    exec(CATALOG["cpu_freeze"].code(True), namespace)
    with torch.no_grad():
        output = namespace["model"](IMAGES)
        model.conv.weight.zero_()
        again = namespace["model"](IMAGES)
else:
    settings = {{"compile.freezing": True, **{settings!r}}}
    components = applied(model, settings, Mode.INFER)
    step = make_step(components, None)
    output = step(IMAGES)
    with torch.no_grad():
        model.conv.weight.zero_()
    again = step(IMAGES)
torch.testing.assert_close(output, expected, rtol=1e-3, atol=1e-4)
# The weights are constants of the code by now: what becomes of the parameter has no effect any more.
assert torch.equal(output, again), "not frozen"
assert not output.requires_grad
print("frozen")
"""


@pytest.mark.parametrize(("by_code", "settings"), [(False, {}), (True, {}), (False, {"infer.grad": "inference_mode"})])
def test_parameters_become_constants(by_code, settings, tmp_path):
    script = FROZEN.format(folder=str(Path(__file__).parent), by_code=by_code, settings=settings)
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    assert run.stdout.strip() == "frozen", run.stderr[-3000:]


def test_candidates_of_freezing(compilers):
    assert proposed("cpu_freeze", cpu_facts(mode=Mode.INFER)) == [True]
    assert "inference only" in reason("cpu_freeze", cpu_facts())
    assert "CPU only" in reason("cpu_freeze", gpu_facts(mode=Mode.INFER))
    assert "no convolution or linear layer" in reason(
        "cpu_freeze", cpu_facts(mode=Mode.INFER, families={"embedding": 1})
    )
    conflict = CATALOG["cpu_freeze"].conflict
    assert "no gradient is recorded" in conflict(True, {"infer.grad": "grad"})
    assert "no two blocks" in conflict(True, {"compile.scope": "regional"})
    assert conflict(True, {"infer.grad": "inference_mode", "compile.mode": "default"}) is None


# --- step.clip_grad -------------------------------------------------------------------------------------------


def plain_clipped(model, norm, count=6):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(4)
    losses = []
    for _ in range(count):
        inputs, targets = torch.randn(4, 8, generator=generator), torch.randint(4, (4,), generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), norm)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("value", ["default", "foreach", "for-loop"])
def test_a_clipped_step_is_the_plain_loop(value):
    model, reference = twin(own_blocks)
    components = applied(model, {"step.clip_grad": value}, clip_norm=0.1)
    losses = losses_of(make_step(components, nn.CrossEntropyLoss()))
    assert losses == pytest.approx(plain_clipped(reference, 0.1), rel=1e-6)
    unclipped = twin(own_blocks)[0]
    assert losses_of(make_step(parts(unclipped), nn.CrossEntropyLoss())) != pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize("value", ["foreach", "for-loop"])
def test_the_code_of_clipping_clips(value):
    model = nn.Linear(8, 4)
    inputs, targets = 100 * torch.ones(4, 8), torch.tensor([0, 1, 2, 3])
    namespace = {"torch": torch, "model": model, "loss_fn": nn.CrossEntropyLoss()}
    exec(CATALOG["grad_clip"].code(value), namespace | {"inputs": inputs, "targets": targets})
    total = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
    assert total.item() == pytest.approx(1.0, rel=1e-4)


def test_gradients_are_clipped_after_they_are_unscaled():
    model = own_blocks().train()
    plan = StepPlan(mode=Mode.TRAIN, device="cpu", autocast="float16", clip_norm=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = TrainStep(model, optimizer, nn.CrossEntropyLoss(), plan)
    step((torch.randn(4, 8), torch.tensor([0, 1, 2, 3])))
    total = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
    assert total.item() <= 0.1 * (1 + 1e-4)
    assert step.scaler.get_scale() > 1


def test_the_public_api_clips():
    model, reference = twin(own_blocks)
    tuning = Tuning({"step.clip_grad": "foreach"})
    model, optimizer = tuning.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
    step = tuning.train_step(model, optimizer, nn.CrossEntropyLoss(), clip_grad=0.1)
    assert losses_of(step) == pytest.approx(plain_clipped(reference, 0.1), rel=1e-6)


@pytest.mark.parametrize("settings", [{"step.clip_grad": "foreach"}, {"step.clip_grad": "for-loop"}, {}])
def test_the_exported_file_clips(settings):
    model, reference = twin(own_blocks)
    namespace: dict = {}
    exec(python_source(CATALOG, settings, "train"), namespace)
    model, optimizer, _ = namespace["prepare"](model, torch.optim.SGD(model.parameters(), lr=0.05))
    step = namespace["train_step"](model, optimizer, nn.CrossEntropyLoss(), clip_grad=0.1)
    assert losses_of(step) == pytest.approx(plain_clipped(reference, 0.1), rel=1e-6)


def test_who_clips_is_asked(compilers):
    assert "advisor.Workload(clip_grad=1.0)" in reason("grad_clip", gpu_facts())
    assert proposed("grad_clip", gpu_facts(clip_norm=1.0)) == ["for-loop"]
    by_hand = gpu_facts(clip_norm=1.0, current={"step.clip_grad": "for-loop"})
    assert proposed("grad_clip", by_hand) == ["foreach", "default"]


def test_a_workload_says_what_it_clips_to():
    from advisor.adapters.normalise import normalise
    from advisor.workload import Workload

    spec = TargetSpec("m:build", ".")
    batch = torch.ones(2, 8), torch.tensor([0, 1])
    loop = normalise(Workload(own_blocks(), batch, clip_grad=0.5), spec)
    assert loop.clip_norm == 0.5
    assert normalise({"model": own_blocks(), "data": batch, "clip_grad": 2}, spec).clip_norm == 2.0
    assert normalise((own_blocks(), batch), spec).clip_norm is None
    for wrong in (0, -1.0, "1", True):
        with pytest.raises(TargetError, match="clip_grad"):
            normalise(Workload(own_blocks(), batch, clip_grad=wrong), spec)


# --- model.inplace_activations --------------------------------------------------------------------------------


def plain_resnet18():
    model = torchvision.models.resnet18(num_classes=4)
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    return model


@both_ways
@pytest.mark.parametrize(
    ("make", "size", "count"), [(plain_resnet18, 32, 9), (Norms, 8, 4)], ids=["ResNet-18", "U-Net"]
)
def test_activations_in_place_change_no_bit(effect, make, size, count):
    model, reference = twin(make)
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(5))
    changed = effect("inplace_activations", True, model)
    assert changed is model
    assert len(activations_in_place(model)) == count
    output, gradients = gradients_of(model.train(), images)
    expected, expected_gradients = gradients_of(reference.train(), images)
    assert torch.equal(output, expected)
    for found, wanted in zip(gradients, expected_gradients, strict=True):
        assert torch.equal(found, wanted)


@both_ways
def test_activations_whose_input_is_needed_are_left_alone(effect):
    model, reference = twin(MustCopy)
    effect("inplace_activations", True, model)
    assert activations_in_place(model) == []
    inputs = torch.randn(3, 8)
    assert torch.equal(gradients_of(model, inputs)[0], gradients_of(reference, inputs)[0])


def test_inference_takes_smooth_activations_too():
    model, reference = twin(MustCopy)
    by_apply("inplace_activations", True, model, Mode.INFER)
    assert activations_in_place(model) == [model.smooth]
    with torch.no_grad():
        assert torch.equal(model(torch.ones(2, 8)), reference(torch.ones(2, 8)))


def test_one_module_that_is_called_twice_has_to_be_safe_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.act = nn.Linear(4, 4), nn.ReLU()

        def forward(self, x):
            y = self.act(self.a(x))
            z = self.a(y)
            return self.act(z) * z

    model = Twice()
    assert inplace_sites(model) == []


@both_ways
def test_activations_in_place_can_be_measured_off(effect):
    model, reference = twin(lambda: torchvision.models.resnet18(num_classes=4))
    effect("inplace_activations", False, model)
    assert activations_in_place(model) == []
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(gradients_of(model, images)[0], gradients_of(reference.train(), images)[0])


def test_candidates_of_activations_in_place():
    assert proposed("inplace_activations", cpu_facts(inplace_activations=9)) == [True]
    on = {"model.inplace_activations": True}
    assert proposed("inplace_activations", cpu_facts(current=on)) == [False]
    assert "no activation module" in reason("inplace_activations", cpu_facts(families=LINEAR))
    problem = "has forward hooks, which a trace would lose"
    assert reason("inplace_activations", cpu_facts(tracing_problem=problem)) == f"the model {problem}"
    assert CATALOG["inplace_activations"].numerics is Numerics.EXACT


def test_what_cannot_be_traced_is_refused_in_words():
    with pytest.raises(CannotTraceError, match="optional arguments"):
        by_apply("inplace_activations", True, Optional())


# --- the family -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"compile.scope": "regional"},
        {"compile.scope": "regional", "compile.mode": "default", "compile.dynamic": False},
        {"compile.scope": "with_loss", "precision.autocast": "bfloat16"},
        {"compile.dynamic": True},
        {"compile.pointwise_only": True},
        {"compile.optimizer": True, "compile.scope": "regional"},
        {"model.inplace_activations": True, "step.clip_grad": "foreach"},
    ],
)
def test_the_exported_file_trains_as_the_settings_do(settings, eager_backend):
    def make():
        return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Tanh()) for _ in range(3)), nn.Linear(8, 4))

    model, reference = twin(make)
    components = applied(reference, settings)
    expected = losses_of(make_step(components, nn.CrossEntropyLoss()))
    by_settings = counters["frames"]["ok"]
    torch._dynamo.reset()
    counters.clear()
    namespace: dict = {}
    exec(python_source(CATALOG, settings, "train"), namespace)
    model, optimizer, _ = namespace["prepare"](model, torch.optim.SGD(model.parameters(), lr=0.05))
    step = namespace["train_step"](model, optimizer, nn.CrossEntropyLoss())
    assert losses_of(step) == pytest.approx(expected, rel=1e-4)
    assert counters["frames"]["ok"] == by_settings


def test_settings_that_contradict_are_refused():
    with pytest.raises(UsageError, match="cannot be combined"):
        applied(own_blocks(), {"compile.mode": "none", "compile.scope": "regional"})
    with pytest.raises(UsageError, match="pointwise chains included"):
        applied(own_blocks(), {"compile.mode": "default", "compile.pointwise_only": True})


def test_without_a_compiler_nothing_is_proposed(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("advisor.toolchain.shutil.which", lambda name: None)
    found = {"repeated_blocks": (("Block", 4),), "varying_shapes": True, "fusable_chains": 3, "families": LINEAR}
    for recipe_id in ("compile_scope", "compile_dynamic", "compile_optimizer", "fuse_pointwise"):
        assert "install gcc or clang" in reason(recipe_id, gpu_facts(**found))
    assert "needs a C++ compiler" in reason("cpu_freeze", cpu_facts(mode=Mode.INFER))


def test_what_compiles_is_tried_late():
    assert all(CATALOG[recipe_id].expensive for recipe_id in COMPILES)
    assert CATALOG.cost({"compile.scope": "regional"}) < 1 == CATALOG.cost({"compile.mode": "default"})
