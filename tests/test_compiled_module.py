"""Models compiled in place: where CUDA graphs are replayed, and what compiled code notices."""

import copy
import gc
import itertools
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch._C._dynamo.guards import dict_version

from advisor.recipe import MODES_WITH_GRAPHS
from advisor.recipe.plan import StepPlan
from advisor.step.compilation import collect_rarely_while_compiling
from advisor.step.compiled_module import (
    WITHOUT_GRAPHS,
    check_parameters_anew,
    compile_in_place,
    noticing_training,
    replaying_graphs,
    without_graphs,
)
from advisor.step.step import InferStep, TrainStep
from advisor.step.tuning import Tuning

GRAPHS = "triton.cudagraphs"


def test_recipes_and_the_runtime_know_the_same_modes_with_graphs():
    """Recipes must not import torch, and exported files hold the runtime's own table."""
    assert WITHOUT_GRAPHS == MODES_WITH_GRAPHS


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mode": "default"}, {"mode": "default"}),
        ({"mode": "reduce-overhead", "dynamic": None}, {"mode": "default", "dynamic": None}),
        ({"mode": "max-autotune"}, {"mode": "max-autotune-no-cudagraphs"}),
        ({"options": {GRAPHS: True, "max_autotune": True}}, {"options": {GRAPHS: False, "max_autotune": True}}),
        ({"options": {"combo_kernels": True}}, {"options": {"combo_kernels": True}}),
        ({}, {}),
    ],
)
def test_the_same_code_without_graphs(options, expected):
    assert without_graphs(options) == expected


def test_a_model_of_generated_code_is_compiled():
    """As torch.fx and torch.export make them: their forward names no module that it is from."""
    model, inputs = nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval(), torch.ones(4, 3)
    for generated in (torch.fx.symbolic_trace(model), torch.export.export(model, (inputs,)).module()):
        assert type(generated).forward.__module__ is None
        compile_in_place(generated, backend="eager")
        assert torch.equal(generated(inputs), model(inputs))


def test_of_models_in_a_container_each_is_compiled():
    """The container itself is never called."""
    models = nn.ModuleDict({"a": nn.Linear(2, 2), "rest": nn.ModuleList([nn.Linear(2, 2)])})
    compile_in_place(models, backend="eager")
    assert models["a"]._compiled_call_impl is not None
    assert models["rest"][0]._compiled_call_impl is not None


def test_a_container_that_is_called_is_compiled_as_a_whole():
    class Chain(nn.ModuleList):
        def forward(self, x):
            for part in self:
                x = part(x)
            return x

    chain = Chain([nn.Linear(2, 2)])
    compile_in_place(chain, backend="eager")
    assert chain._compiled_call_impl is not None
    assert chain[0]._compiled_call_impl is None


@pytest.fixture
def modes_called(monkeypatch):
    """The modes of the compiled calls that ran; a stand-in, for a CPU has no CUDA graphs."""
    called = []

    def compiled(function, *, mode):
        def call(*args, **kwargs):
            called.append(mode)
            return function(*args, **kwargs)

        call.get_compiler_config = dict
        return call

    monkeypatch.setattr(torch, "compile", compiled)
    return called


def test_a_loop_of_ones_own_replays_no_graphs_and_is_told_once(modes_called):
    model = nn.Linear(2, 2)
    compile_in_place(model, mode="reduce-overhead")
    with pytest.warns(UserWarning, match=r"CUDA graphs of this compiled Linear are left out.*train_step\(\)"):
        model(torch.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(torch.ones(2)).sum().backward()
        model(torch.ones(2))
    with replaying_graphs():
        model(torch.ones(2))
    assert modes_called == ["default", "default", "default", "reduce-overhead"]


def test_evaluating_replays_no_graphs_and_needs_no_warning(modes_called):
    model = nn.Linear(2, 2)
    compile_in_place(model, mode="max-autotune")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad():
            model(torch.ones(2))
        model.eval()(torch.ones(2))
    assert modes_called == ["max-autotune-no-cudagraphs"] * 2


def graphed_step(monkeypatch, model, parameters, loss):
    monkeypatch.setattr("advisor.step.contexts.marks_steps", lambda plan: plan.compile_mode == "reduce-overhead")
    plan = StepPlan(mode="train", device="cpu", compile_mode="reduce-overhead")
    compile_in_place(model, mode="reduce-overhead")
    return TrainStep(model, torch.optim.SGD(parameters, lr=0.1), loss, plan)


def test_a_step_replays_graphs_also_where_a_checkpoint_runs_again(modes_called, monkeypatch):
    block = nn.Linear(2, 2)

    def loss(model, batch):
        return torch.utils.checkpoint.checkpoint(model, batch * 1, use_reentrant=False).sin().sum()

    step = graphed_step(monkeypatch, block, block.parameters(), loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # of no other kind: what earlier tests left may be collected now
        step(torch.ones(1, 2, requires_grad=True))
    assert modes_called == ["reduce-overhead"] * 2


@pytest.fixture
def graphs(monkeypatch):
    """Graphs whose outputs lie at these addresses while they are in use: a stand-in, for a CPU has no CUDA graphs."""
    addresses = set()
    monkeypatch.setattr("advisor.step.compiled_module.LEFT_OUT", [])
    monkeypatch.setattr("advisor.step.compiled_module.addresses_in_use", lambda device: set(addresses))
    return addresses


def test_gradients_of_parameters_that_another_optimizer_has_are_copied_before_graphs_overwrite_them(
    modes_called, monkeypatch, graphs
):
    """A shared trunk: its gradients add up until its own optimizer clears them."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    trunk = model[0].weight
    step = graphed_step(monkeypatch, model, model[1].parameters(), lambda model, batch: model(batch).sum())
    step(torch.ones(1, 2))
    left, once = trunk.grad, trunk.grad.clone()
    in_use = lambda device: {left.data_ptr()} if trunk.grad is left else set()  # noqa: E731
    monkeypatch.setattr("advisor.step.compiled_module.addresses_in_use", in_use)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", left.zero_)
    step.begin_graphs()
    assert not left.any()
    assert torch.equal(trunk.grad, once)


def test_what_is_kept_beyond_its_step_ends_the_graphs_and_is_told_once(modes_called, monkeypatch, graphs):
    model = nn.Linear(2, 1)
    step = graphed_step(monkeypatch, model, model.parameters(), lambda model, batch: model(batch).sum())
    step(torch.ones(1, 2))
    graphs.add(1)
    with pytest.warns(UserWarning, match="left out from now on: something keeps an output"):
        step(torch.ones(1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(torch.ones(1, 2))
    assert modes_called == ["reduce-overhead", "default", "default"]


def test_a_hook_ends_the_graphs_of_inference_whose_outputs_hold_their_own(modes_called, monkeypatch, graphs):
    monkeypatch.setattr("advisor.step.contexts.marks_steps", lambda plan: True)
    model = nn.Linear(2, 1).eval()
    compile_in_place(model, mode="reduce-overhead")
    infer = InferStep(model, StepPlan(mode="infer", device="cpu", compile_mode="reduce-overhead"))
    infer(torch.ones(1, 2))
    model.register_forward_hook(lambda module, inputs, output: None)
    with pytest.warns(UserWarning, match="left out from now on: a hook"):
        infer(torch.ones(1, 2))
    assert modes_called == ["reduce-overhead", "default"]


def test_a_gradient_of_a_gradient_is_refused_in_a_sentence():
    """PyTorch cannot differentiate compiled code twice; a plain backward pass goes on."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    compile_in_place(model, backend="aot_eager")
    inputs = torch.ones(1, 2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"cannot be differentiated twice.*leave out the settings compile"):
        torch.autograd.grad(model(inputs * 1).sum(), inputs, create_graph=True)
    model(inputs * 1).sum().backward()
    assert inputs.grad is not None


def test_a_penalty_on_the_gradient_of_an_input_runs_as_without_compiling():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    plain = copy.deepcopy(model)
    compile_in_place(model, backend="aot_eager")
    for one in (model, plain):
        inputs = torch.ones(1, 2).requires_grad_()
        (gradient,) = torch.autograd.grad(one(inputs).sum(), inputs, create_graph=True)
        gradient.square().sum().backward()
    assert torch.equal(model[0].weight.grad, plain[0].weight.grad)
    assert model[0].weight.grad.any()


def test_compiled_code_looks_at_parameters_anew():
    model = nn.Sequential(nn.Linear(2, 2))
    before = dict_version(model[0]._parameters)
    check_parameters_anew(model)
    assert dict_version(model[0]._parameters) != before
    assert list(model[0]._parameters) == ["weight", "bias"]
    check_parameters_anew(torch.jit.script(nn.Linear(2, 2)))


def test_a_call_is_told_of_layers_that_were_unfrozen():
    """What PyTorch before 2.12 needs; later versions see it themselves."""
    model = nn.Linear(2, 2).requires_grad_(False)
    call = noticing_training(model, model._call_impl)
    versions = []
    for trained in (False, True, True, False):
        model.requires_grad_(trained)
        call(torch.ones(2))
        versions.append(dict_version(model._parameters))
    assert [b != a for a, b in itertools.pairwise(versions)] == [True, False, True]


@pytest.mark.usefixtures("eager_backend", "fresh_compiler")
@pytest.mark.parametrize("settings", [{"compile.mode": "default"}, {"compile.scope": "with_loss"}])
def test_unfreezing_layers_keeps_what_else_was_compiled(settings):
    """The step is compiled for the other parameters; functions that the loop has compiled stay as they are."""
    made = []

    @torch._dynamo.optimize(lambda graph, inputs: made.append(graph) or graph.forward)
    def of_the_loop(x):
        return x.sin() + 1

    def trained(tuned):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tuning = Tuning(settings if tuned else {})
        model, optimizer = tuning.prepare(model, optimizer)
        step = tuning.train_step(model, optimizer, nn.CrossEntropyLoss())
        for iteration in range(6):
            if iteration in (2, 4):
                model[0].requires_grad_(iteration == 2)
            of_the_loop(torch.ones(2))
            step((torch.ones(4, 3), torch.tensor([0, 1, 1, 1])))
        return model[0].weight, model[1].weight

    torch.testing.assert_close(trained(tuned=True), trained(tuned=False))
    assert len(made) == 1


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


def test_collections_are_rarer_while_code_is_compiled_and_then_as_before():
    usual, seen = gc.get_threshold(), []

    def backend(graph, _):
        seen.append(gc.get_threshold())
        return graph

    torch.compiler.reset()
    for _ in range(2):
        collect_rarely_while_compiling()
    try:
        torch.compile(nn.Linear(2, 2), backend=backend)(torch.ones(1, 2))
        assert seen == [(100 * usual[0], *usual[1:])]
        assert gc.get_threshold() == usual
    finally:
        torch.compiler.reset()
