"""The table of loops: each kind under each setting against the plain loop, on the CPU and captured on a GPU."""

import itertools
import math
import warnings
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from process_state import state_put_back
from torch.utils._pytree import keystr, tree_flatten_with_path

from advisor.records import Mode, Numerics, Value
from loops.kinds import CATALOG, Loop, PlainRun, TunedRun
from loops.variants import LOOPS, TABLE

FUSED = {"optimizer.implementation": "fused"}
STACK = {**FUSED, "model.memory_format": "channels_last", "precision.autocast": "bfloat16", "step.zero_grad": "manual"}
GRAPH = {"step.cuda_graph": True}
SETTINGS: Mapping[str, Mapping[str, Value]] = {
    "nothing": {},
    "exact": {"step.zero_grad": "manual", "precision.autocast": "bfloat16"},
    "float16": {"precision.autocast": "float16"},
    "stack": STACK,
    "captured": {**FUSED, **GRAPH},
    "captured stack": {**STACK, **GRAPH},
    "captured float16": {**FUSED, **GRAPH, "precision.autocast": "float16"},
    "compiled": {"compile.mode": "default"},
    "reduce-overhead": {"compile.mode": "reduce-overhead"},
    "with loss": {"compile.scope": "with_loss"},
    "regional": {"compile.scope": "regional"},
    "captured, with loss": {**FUSED, **GRAPH, "compile.scope": "with_loss"},
}
COMPILING = ("compiled", "reduce-overhead", "with loss", "regional", "captured, with loss")
# A loop that differs from the plain one in one part is run under three settings, each kind of loop under two more.
KINDS = [name for name in LOOPS if name not in TABLE]
ON_CPU = (*itertools.product(LOOPS, ("exact", "stack", "captured")), *itertools.product(KINDS, ("nothing", "float16")))
# Compiling takes seconds. What is drawn at random in compiled code is not what is drawn in a plain loop.
COMPILED_ON_CPU = (
    ("plain", "compiled"),
    ("images", "regional"),
    ("frozen_and_unfrozen", "compiled"),
    ("loss_of_the_model", "compiled"),
    ("weight_of_the_global", "with loss"),
    ("weight_of_the_object", "with loss"),
    ("smaller_last_batch", "captured, with loss"),
)
# An update of several batches is not captured as one step, neither by the compiler's own graphs.
REFUSED = {("accumulated", name) for name in SETTINGS if name.startswith(("captured", "reduce-overhead"))}
# Relative differences by rounding in 20 steps of these loops, with a margin. A number that a graph froze makes 0.3.
ROUNDING = {"float32": 2e-3, "bfloat16": 5e-2, "float16": 2e-2}


def run(loop: Loop, of: PlainRun) -> dict[str, Any]:
    """The losses and the states of a loop by name."""
    with state_put_back(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(CUDA graph|cuda_graph|lr_scheduler|cudagraph)")
        torch.manual_seed(0)
        objects = loop.function(of)
    found: dict[str, Any] = {"losses": torch.tensor(of.losses)}
    for name, one in objects.items():
        found |= {name + keystr(path): value for path, value in tree_flatten_with_path(one.state_dict())[0]}
    return found


def distance(plain: Any, found: Any) -> float:
    """The relative difference of two values; infinite where their types differ."""
    if type(plain) is not type(found):
        return float("inf")
    if not isinstance(plain, float | torch.Tensor):
        return 0.0 if plain == found else float("inf")
    old, new = (torch.as_tensor(value).detach().double().cpu() for value in (plain, found))
    if old.shape != new.shape or (isinstance(plain, torch.Tensor) and plain.dtype != found.dtype):
        return float("inf")
    apart = float((old - new).norm()) / max(float(old.norm()), 1e-3)
    return float("inf") if math.isnan(apart) else apart


def is_exact(settings: Mapping[str, Value]) -> bool:
    """Whether all settings but the precision, which the plain loop has too, are exact by what their recipes say."""
    others = [(CATALOG.by_key(key), value) for key, value in settings.items() if key != "precision.autocast"]
    return all(recipe.numerics_of(value, Mode.TRAIN) is Numerics.EXACT for recipe, value in others)


def check(name: str, setting: str, device_name: str) -> None:
    """Check that a loop with a setting agrees with the plain loop, or that a known refusal is raised."""
    loop, device = LOOPS[name], torch.device(device_name)
    settings = {**SETTINGS[setting], **loop.always}
    assert bool(CATALOG.conflict(settings)) is ((name, setting) in REFUSED)
    if (name, setting) in REFUSED:
        return
    plain, tuned = run(loop, PlainRun(device, settings)), TunedRun(device, settings)
    found = run(loop, tuned)
    assert tuned.was_captured or "step.cuda_graph" not in settings
    assert list(found) == list(plain)
    apart, where = max((distance(plain[one], found[one]), one) for one in plain)
    allowed = ROUNDING[tuned.precision] if device.type == "cuda" or not is_exact(settings) else 0.0
    assert apart <= allowed, where


@pytest.mark.parametrize(("name", "setting"), ON_CPU)
def test_a_loop_does_what_the_plain_one_does(name, setting):
    check(name, setting, "cpu")


@pytest.mark.compile
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("name", "setting"), COMPILED_ON_CPU)
def test_a_compiled_loop_does_what_the_plain_one_does(name, setting, request):
    if name != "plain":
        request.getfixturevalue("eager_backend")
    check(name, setting, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_on_a_gpu_does_what_the_plain_one_does(name, setting):
    if setting in COMPILING and LOOPS[name].draws:
        pytest.skip("compiled code draws other random numbers")
    if setting == "regional" and name != "images":
        pytest.skip("the model repeats no block")
    check(name, setting, "cuda")
