"""The recipes that compile: the model, its blocks, the loss, the optimizer, constants."""

import pytest
import torch
from compiled_models import (
    IMAGES,
    Block,
    applied,
    by_apply,
    gradients_of,
    own_blocks,
    parts,
    pytorchs_blocks,
    sequential_blocks,
    twin,
)
from model_structures import coded
from proposals import CATALOG
from recipe_workload import Net
from torch import nn
from torch._dynamo.utils import counters

from advisor.records import Mode
from advisor.step.step import make_step

pytestmark = pytest.mark.usefixtures("fresh_compiler")


# --- compile.mode ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [by_apply, coded])
@pytest.mark.parametrize(("value", "graphs"), [("default", 1), ("max-autotune-no-cudagraphs", 1), ("none", 0)])
def test_the_model_is_compiled_as_a_whole_or_not_at_all(way, value, graphs, eager_backend):
    model, reference = twin(own_blocks)
    back, inputs = way("compile", value, model.eval()), torch.randn(2, 8)
    with torch.no_grad():
        torch.testing.assert_close(back(inputs), reference.eval()(inputs))
    assert counters["frames"]["ok"] == graphs
    assert getattr(back, "_orig_mod", back) is model


# --- compile.scope --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [own_blocks, pytorchs_blocks, sequential_blocks])
def test_blocks_are_compiled_once_and_the_model_stays_itself(make, eager_backend):
    model, reference = twin(make)
    names = list(model.state_dict())
    back = by_apply("compile_scope", "regional", model.eval())
    inputs = torch.randn(2, 3, 8)
    reference.eval()
    with torch.no_grad():
        torch.testing.assert_close(back(inputs), reference(inputs))
    assert back is model
    assert list(model.state_dict()) == names
    # One graph for all blocks: the layers share their code, the head is not compiled.
    assert counters["frames"]["ok"] == 1


def test_blocks_of_many_shapes_all_stay_compiled(eager_backend):
    class Stage(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.blocks = nn.Sequential(Block(width), Block(width))
            self.wider = nn.Linear(width, width + 1)

        def forward(self, x):
            return self.wider(self.blocks(x))

    model, reference = twin(lambda: nn.Sequential(*(Stage(width) for width in range(4, 13))))
    before = torch._dynamo.config.recompile_limit
    model = applied(model, {"compile.scope": "regional"}, Mode.INFER).model
    with torch.no_grad():
        torch.testing.assert_close(model(torch.ones(2, 4)), reference(torch.ones(2, 4)))
    assert counters["frames"]["ok"] == 9 > before
    assert not counters["unimplemented"]


def test_the_scope_alone_means_the_default_mode_and_goes_with_the_others():
    for settings, mode in (
        ({"compile.scope": "regional"}, "default"),
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
    assert "compile.mode is none" in CATALOG["compile"].conflict("none", {"compile.scope": "regional"})


def mean_square(model, batch):
    inputs, target = batch
    return (model(inputs) - target).square().mean()


class OwnLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs, labels):
        return {"loss": (self.layer(inputs) - labels).square().mean()}


def train(step, batch):
    return [float(step(batch)) for _ in range(3)]


PAIR, NAMED = (torch.randn(4, 8), torch.randn(4, 4)), {"inputs": torch.randn(2, 4), "labels": torch.randn(2, 4)}


@pytest.mark.parametrize(
    ("make", "loss", "batch"),
    [(own_blocks, nn.MSELoss(), PAIR), (own_blocks, mean_square, PAIR), (OwnLoss, None, NAMED)],
)
def test_model_and_loss_are_compiled_as_one(make, loss, batch, eager_backend):
    model, reference = twin(make)
    expected = train(make_step(parts(reference), loss), batch)
    torch._dynamo.reset()
    counters.clear()
    components = applied(model, {"compile.scope": "with_loss"})
    assert components.model is model
    assert train(make_step(components, loss), batch) == pytest.approx(expected)
    assert counters["frames"]["ok"] == 1  # one graph holds the forward pass and the loss
    assert counters["stats"]["unique_graphs"] == 1


class Formula(nn.Module):
    """Two formulas of pointwise operations around layers that are not pointwise, and dropout."""

    def __init__(self):
        super().__init__()
        self.wide, self.norm, self.back = nn.Linear(8, 32), nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, x):
        x = self.wide(x)
        x = self.norm(0.5 * x * (1 + torch.tanh(0.8 * (x + 0.05 * x**3))))
        return self.back(nn.functional.dropout(torch.sigmoid(x * 1.5) * x + 1, 0.1, self.training))


def test_pointwise_operations_are_compiled_and_the_model_trains_as_before(monkeypatch):
    compiled, usual = [], torch.compile

    def counted(module=None, **options):
        compiled.append(module)
        return usual(module, **options)

    model, reference = twin(Formula)
    changed = by_apply("compile_scope", "pointwise", model)
    monkeypatch.setattr(torch, "compile", counted)
    assert changed is model
    for size in (4, 6, 7):
        inputs = torch.randn(size, 8)
        torch.testing.assert_close(gradients_of(changed, inputs), gradients_of(reference, inputs))
    groups = [group for group in compiled if isinstance(group, torch.fx.GraphModule)]
    assert len(groups) >= 4, "of each formula one, forward and backward"
    called = {node.target for group in groups for node in group.graph.nodes if node.op == "call_function"}
    assert all(torch.Tag.pointwise in operator.tags for operator in called)
    with torch.no_grad():
        torch.testing.assert_close(changed.eval()(inputs), reference.eval()(inputs))


# --- compile.freezing -----------------------------------------------------------------------------------------


def test_parameters_become_constants(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    model = Net()
    with torch.no_grad():
        for _ in range(3):
            model(IMAGES)
    expected = model.eval()(IMAGES)
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    step = make_step(applied(model, {"compile.freezing": True}, Mode.INFER), None)
    output = step(IMAGES)
    with torch.no_grad():
        model.conv.weight.zero_()
    again = step(IMAGES)
    torch.testing.assert_close(output, expected, rtol=1e-3, atol=1e-4)
    # The weights are constants of the code by now: what becomes of the parameter has no effect any more.
    assert torch.equal(output, again), "not frozen"
    assert not output.requires_grad
    model.load_state_dict(saved)
    torch.testing.assert_close(step(IMAGES), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("by_loop", [0.0, 0.1])
def test_a_number_that_the_loop_or_the_loss_changes_is_followed(by_loop):
    def losses(settings):
        torch.manual_seed(0)
        near, batch = {"limit": 0.2}, (torch.ones(4, 3), torch.ones(4, 3))

        def loss(output, target):
            near["limit"] += 0.1 - by_loop
            return (output.clamp(max=near["limit"]) - target).square().mean()

        step = make_step(applied(nn.Linear(3, 3), settings), loss)
        for _ in range(6):
            yield step(batch)
            near["limit"] += by_loop

    torch.testing.assert_close(list(losses({"compile.scope": "with_loss"})), list(losses({})))


@pytest.mark.parametrize("scope", ["model", "with_loss"])
def test_a_chunked_loss_is_compiled_without_a_break(scope, eager_backend):
    tokens, loss = torch.randint(16_384, (3, 5)), nn.CrossEntropyLoss()
    models = [nn.Sequential(nn.Embedding(16_384, 4), nn.Linear(4, 16_384)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    steps = []
    for model, chunked in zip(models, (False, True), strict=True):
        settings = {"compile.scope": scope, "loss.chunked": chunked}
        workload = applied(model, settings)
        steps.append(make_step(workload, lambda scores, targets: loss(scores.transpose(1, 2), targets)))
    for _ in range(2):
        plain, tuned = (step((tokens, tokens)) for step in steps)
        torch.testing.assert_close(tuned, plain)
    assert not counters["graph_break"]
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other)
