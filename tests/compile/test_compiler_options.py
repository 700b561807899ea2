"""Options of the compiler, given by the runtime and the exported file."""

import functools
import importlib

import pytest
import torch
from compiled_models import applied, by_code, own_blocks
from facts import LINEAR, cpu_facts, gpu_facts
from proposals import CATALOG, proposed, reason
from torch import nn

from advisor.export.python_file import python_source
from advisor.records import Mode
from advisor.step.step import make_step

pytestmark = pytest.mark.usefixtures("fresh_compiler")


GRAPHS = "triton.cudagraphs"
MATMULS = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN,TRITON"}
COMBINED = {"combo_kernels": True}
NO_CUDAGRAPHS = {"max_autotune": True, "coordinate_descent_tuning": True}


@pytest.fixture
def asked(monkeypatch):
    """What torch.compile is asked for; nothing is compiled."""
    calls = []

    def compiled(model=None, **options):
        calls.append(options)
        if isinstance(model, nn.Module) or model is None:
            return model or (lambda function: function)
        call = functools.partial(model)
        call.get_compiler_config = dict
        return call

    monkeypatch.setattr(torch, "compile", compiled)
    return calls


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"compile.autotune": "matmuls"}, MATMULS),
        ({"compile.combo_kernels": True}, COMBINED),
        ({"compile.autotune": "matmuls", "compile.combo_kernels": True}, {**MATMULS, **COMBINED}),
        ({"compile.mode": "max-autotune-no-cudagraphs", "compile.combo_kernels": True}, {**NO_CUDAGRAPHS, **COMBINED}),
        ({"compile.mode": "reduce-overhead", "compile.autotune": "matmuls"}, {GRAPHS: True, **MATMULS}),
    ],
)
@pytest.mark.parametrize("scope", ["model", "with_loss"])
def test_options_are_given_to_the_compiler_by_the_runtime_and_the_exported_file(asked, settings, options, scope):
    settings = settings | ({} if scope == "model" else {"compile.scope": scope})
    loss = nn.functional.cross_entropy
    make_step(applied(own_blocks(), settings), loss)
    # What is compiled with graphs is also compiled without, for when they are left out.
    forms = [options, {**options, GRAPHS: False}] if GRAPHS in options else [options]
    assert asked == [{"options": one, "dynamic": None} for one in forms]
    asked.clear()

    names = {}
    exec(compile(python_source(CATALOG, settings, Mode.TRAIN), "tuned.py", "exec"), names)
    model = own_blocks()
    model, optimizer, _ = names["prepare"](model, torch.optim.SGD(model.parameters(), lr=0.1))
    names["train_step"](model, optimizer, loss)
    assert asked
    assert all(call["options"] in forms and call.get("dynamic") is None for call in asked)


@pytest.mark.parametrize(
    ("recipe_id", "value", "options"), [("compile_autotune", "matmuls", MATMULS), ("combo_kernels", True, COMBINED)]
)
def test_the_code_shown_gives_the_options(asked, recipe_id, value, options):
    model = own_blocks()
    assert by_code(recipe_id, value, model, Mode.INFER) is model
    assert asked == [{"options": options}]


def test_the_compiler_knows_the_options():
    from torch._inductor import config

    known = config.get_config_copy()
    assert {*MATMULS, *COMBINED} <= set(known)


def test_options_are_proposed_where_they_can_do_something(monkeypatch):
    module = importlib.import_module("advisor.recipes.combo_kernels")
    monkeypatch.setattr(
        importlib.import_module("advisor.machine.toolchain").shutil, "which", lambda name: f"/bin/{name}"
    )
    assert proposed("compile_autotune", gpu_facts(families=LINEAR)) == ["matmuls"]
    assert proposed("combo_kernels", gpu_facts()) == [True]
    monkeypatch.setattr(module, "torch_is_older", lambda than: than == (2, 9))
    assert "2.9 and later can" in reason("combo_kernels", gpu_facts())
    assert "no matrix product" in reason("compile_autotune", gpu_facts(families={"conv2d": 2}))
    tuned = gpu_facts(families=LINEAR, current={"compile.mode": "max-autotune"})
    assert "times the kernels of matrix products already" in reason("compile_autotune", tuned)
    for recipe_id in ("compile_autotune", "combo_kernels"):
        assert "needs a CUDA GPU" in reason(recipe_id, cpu_facts(families=LINEAR))


def test_options_mean_that_the_model_is_compiled():
    conflict = CATALOG.conflict
    assert "compile.mode none that it is not" in conflict({"compile.mode": "none", "compile.combo_kernels": True})
    assert "compiles the whole model" in conflict({"compile.pointwise_only": True, "compile.autotune": "matmuls"})
    assert "already" in conflict({"compile.mode": "max-autotune", "compile.autotune": "matmuls"})
    assert conflict({"compile.mode": "default", "compile.autotune": "matmuls", "compile.combo_kernels": True}) is None
    assert not CATALOG["compile_autotune"].accepts("everything")
