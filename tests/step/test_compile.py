"""Models compiled in place: what is compiled, what compiled code follows, and over several processes."""

import gc
import inspect

import numpy as np
import pytest
import torch
from compiled_models import own_blocks, twin
from torch import nn
from torch._dynamo.utils import counters

from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step import compile as compiling
from advisor.step.compile import compile_in_place, compile_model, prepare_compilations
from advisor.step.spread import spread_model
from advisor.step.tuning import Tuning

pytestmark = pytest.mark.compile


def test_a_model_of_generated_code_is_compiled():
    """torch.fx and torch.export make such models: their forward has no module name."""
    model, inputs = nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval(), torch.ones(4, 3)
    for generated in (torch.fx.symbolic_trace(model), torch.export.export(model, (inputs,)).module()):
        compile_in_place(generated, backend="eager")
        assert torch.equal(generated(inputs), model(inputs))


def test_of_models_in_a_container_each_is_compiled():
    models = nn.ModuleDict({"a": nn.Linear(2, 2), "rest": nn.ModuleList([nn.Linear(2, 2)])})
    compile_model(models, StepPlan(mode="train", device="cpu", compile_mode="default"))
    assert models["a"]._compiled_call_impl is not None
    assert models["rest"][0]._compiled_call_impl is not None


def test_a_container_that_is_called_is_compiled_as_a_whole():
    class Chain(nn.ModuleList):
        def forward(self, x):
            for part in self:
                x = part(x)
            return x

    chain = Chain([nn.Linear(2, 2)])
    compile_model(chain, StepPlan(mode="train", device="cpu", compile_mode="default"))
    assert chain._compiled_call_impl is not None
    assert chain[0]._compiled_call_impl is None


@pytest.mark.usefixtures("eager_backend", "fresh_compiler")
@pytest.mark.parametrize("before_2_12", [False, True])
@pytest.mark.parametrize("settings", [{"compile.mode": "default"}, {"compile.scope": "with_loss"}])
def test_layers_that_are_frozen_or_unfrozen_are_followed(settings, before_2_12, monkeypatch):
    if before_2_12:
        monkeypatch.setattr(compiling, "_NOTICES_TRAINING", "99")

    def trained(tuned):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        model[0].requires_grad_(False)
        tuning = Tuning(settings if tuned else {})
        model, optimizer = tuning.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        step = tuning.train_step(model, optimizer, nn.CrossEntropyLoss())
        for iteration in range(6):
            if iteration in (2, 4):
                model[0].requires_grad_(iteration == 2)
            step((torch.ones(4, 3), torch.tensor([0, 1, 1, 1])))
        return model[0].weight, model[1].weight

    torch.testing.assert_close(trained(tuned=True), trained(tuned=False))


@pytest.mark.usefixtures("eager_backend", "fresh_compiler")
@pytest.mark.parametrize("scope", ["model", "with_loss"])
def test_numpys_draws_are_those_of_its_seed(scope):
    class Doubling(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (2.0 if np.random.rand(1) < 0.5 else 1.0)

    tuning = Tuning({"compile.mode": "default", "compile.scope": scope})
    model = Doubling(4, 4)
    nn.init.ones_(model.bias)
    model, optimizer = tuning.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    step = tuning.train_step(model, optimizer, lambda output, target: (output - target).square().mean())
    np.random.seed(0)
    losses = [step((torch.zeros(2, 4), torch.zeros(2, 4))).item() for _ in range(12)]
    np.random.seed(0)
    assert losses == [4.0 if np.random.rand(1) < 0.5 else 1.0 for _ in range(12)]


@pytest.mark.usefixtures("fresh_compiler")
def test_while_code_is_compiled_collections_are_rare_and_what_is_compiled_again_is_not_cached():
    usual, seen, config = gc.get_threshold(), [], torch._functorch.config

    def backend(graph, _):
        seen.append((gc.get_threshold(), config.enable_autograd_cache))
        return graph

    for _ in range(2):
        prepare_compilations()
    scaled = torch.compile(lambda x, number: x * number, backend=backend)
    assert [scaled(torch.ones(()), number).item() for number in (2.0, 3.0)] == [2.0, 3.0]
    assert seen == [((100 * usual[0], *usual[1:]), is_first) for is_first in (True, False)]
    assert (gc.get_threshold(), config.enable_autograd_cache) == (usual, True)


@pytest.mark.parametrize("unit", ["blocks", "model"])
@pytest.mark.parametrize("scope", ["model", "regional"])
@pytest.mark.usefixtures("one_rank", "eager_backend", "fresh_compiler")
def test_a_sharded_model_runs_compiled_code_without_a_break(scope, unit):
    """When hooks and model were one call, nothing was compiled, because hooks break the graph."""
    model, reference = twin(own_blocks)
    inputs = torch.randn(4, 8)
    how = {"compile_mode": "default", "compile_scope": scope, "strategy": "fully_shard", "shard_unit": unit}
    plan = StepPlan(Mode.TRAIN, "cpu", **how)
    compile_model(model, plan)
    spread_model(model, None, plan)
    assert inspect.signature(model.forward) == inspect.signature(reference.forward)
    for one in (model, reference):
        one(inputs).square().sum().backward()
    assert counters["stats"]["unique_graphs"] > 0
    assert not counters["graph_break"]
    for parameter, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad.full_tensor(), expected.grad)


@pytest.mark.usefixtures("one_rank", "fresh_compiler")
def test_of_distributed_data_parallel_the_model_inside_is_compiled():
    wrapped = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    compile_model(wrapped, StepPlan(mode=Mode.TRAIN, device="cpu", compile_mode="default"))
    assert wrapped._compiled_call_impl is None
    assert wrapped.module._compiled_call_impl is not None
