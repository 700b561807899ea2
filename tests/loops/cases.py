"""The settings that loops are run under: every recipe's, one by one, and stacks of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from advisor.recipe.catalog import load_catalog
from advisor.records import Mode, Numerics, Value
from loops.compare import Tolerance
from loops.register import Loop
from loops.runs import Arithmetic, arithmetic_of

CATALOG = load_catalog()
TRAIN, INFER = frozenset({Mode.TRAIN}), frozenset({Mode.INFER})

# Values of each setting that a loop may come to run under, and the traits that a loop needs for it to matter.
VALUES: Mapping[str, tuple[tuple[Value, ...], str]] = {
    "attention.backend": (("math", "flash", "efficient", "cudnn"), "step attention"),
    "backends.cudnn_benchmark": ((True,), "convolution"),
    "compile.dynamic": ((True,), ""),
    "compile.freezing": ((True,), ""),
    "compile.mode": (("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune"), ""),
    "compile.optimizer": ((True,), "step"),
    "compile.scope": (("regional", "with_loss", "pointwise"), ""),
    "cpu.flush_denormal": ((True,), ""),
    "data.batched_reads": ((True,), "loader"),
    "data.device_prefetch": ((True,), "loader"),
    "data.non_blocking": ((True,), "step"),
    "data.num_workers": ((2,), "workers"),
    "data.persistent_workers": ((True,), "workers"),
    "data.pin_memory": ((True,), "loader"),
    "data.prefetch_factor": ((4,), "workers"),
    "host.gc": (("freeze", "scheduled"), "step"),
    "infer.grad": (("no_grad", "inference_mode"), "step"),
    "loop.empty_cache": (("every_step",), "step"),
    "loop.loss_item": (("every_step", "accumulated"), "step"),
    "memory.activation_checkpointing": (("blocks",), "blocks"),
    "model.conv_bias_before_norm": ((False,), "biased_norm"),
    "model.fold_batch_norm": ((True,), "biased_norm"),
    "model.memory_format": (("channels_last",), "convolution"),
    "model.pad_to_multiple": ((8,), ""),
    "optimizer.class": (("lars", "lamb"), ""),
    "optimizer.implementation": (("fused", "foreach", "for-loop"), ""),
    "optimizer.state": (("adafactor",), "adam"),
    "precision.autocast": (("bfloat16", "float16"), "step"),
    "precision.float32_matmul": (("high", "medium"), ""),
    "precision.weights": (("bfloat16", "float16"), "step only_steps"),
    "step.clip_grad": (("foreach", "for-loop"), "step clip"),
    "step.create_on_device": ((True,), "step"),
    "step.cuda_graph": ((True,), "step"),
    "step.zero_grad": (("zeros", "manual"), "step"),
}
# Recipes that no loop is run under here, with the reason.
LEFT_OUT: Mapping[str, str] = {
    "backends.deterministic": "a habit: it is switched off, and is off in these loops",
    "control.noop": "changes nothing; the case 'nothing' does the same",
    "cpu.affinity": "moves the whole process",
    "cpu.allocator": "has to be in the environment before Python starts",
    "cpu.interop_threads": "can be set once in a process",
    "cpu.threads": "changes the order of sums only, and waits for the machine's other load",
    "cpu.openmp": "has to be in the environment before Python starts",
    "data.batch_size": "changes what a step is",
    "data.multiprocessing_context": "starting a worker anew takes seconds; tests/test_recipes_workers.py",
    "data.worker_threads": "starts workers anew, which takes seconds; tests/test_recipes_workers.py",
    "data.transforms_on_device": "needs torchvision's transforms; tests/test_recipes_transforms.py",
    "debug.switches": "a habit: it is measured, never advised",
    "loop.eval_grad": "a habit: it prices a validation step",
    "loop.host_sync": "a habit: it prices lines of the user's code",
    "model.use_cache": "for Hugging Face decoders; tests/test_recipes_training_cache.py",
    "memory.allocator": "has to be in the environment before Python starts",
    "precision.float8": "needs torchao and wide layers",
    "precision.quantize": "needs torchao",
    "step.accumulate": "changes what a step is; the loop accumulating_setting runs it",
}


def values_of(key: str) -> tuple[tuple[Value, ...], str]:
    """The values of a setting that loops run under, and the traits that a loop needs; a new recipe's are all."""
    recipe = CATALOG.by_key(key)
    return VALUES.get(key) or (tuple(value for value in recipe.examples if value != recipe.default), "step")


_WITH_WORKERS = {"data.num_workers": 1}
_BESIDE: Mapping[str, Mapping[str, Value]] = {
    "data.persistent_workers": _WITH_WORKERS,
    "data.prefetch_factor": _WITH_WORKERS,
    "data.device_prefetch": {"data.pin_memory": True},
}


@dataclass(frozen=True, slots=True)
class Case:
    """Settings that a loop runs under, with a name for the table."""

    name: str
    settings: Mapping[str, Value]

    @property
    def arithmetic(self) -> Arithmetic:
        """What the plain run computes in, too."""
        return arithmetic_of(self.settings)

    @property
    def compiles(self) -> bool:
        """Whether something is compiled, which takes seconds."""
        return any(CATALOG.by_key(key).expensive for key in self.settings)


NOTHING = Case("nothing", {})
_EXACT = {
    "step.zero_grad": "manual",
    "host.gc": "scheduled",
    "memory.activation_checkpointing": "blocks",
}
_FASTER = {
    "model.memory_format": "channels_last",
    "model.conv_bias_before_norm": False,
    "optimizer.implementation": "fused",
    "precision.float32_matmul": "high",
    "infer.grad": "inference_mode",
    "data.pin_memory": True,
    "data.non_blocking": True,
}
_HALF = {"precision.autocast": "bfloat16"}
_WHOLE = {"compile.scope": "with_loss"}
_CAPTURED = {"step.cuda_graph": True}
STACKS = (
    Case("exact settings", _EXACT),
    Case("float32 stack", _EXACT | _FASTER),
    Case("bfloat16 stack", _FASTER | _HALF),
    Case("compiled stack", _FASTER | _HALF | {"compile.mode": "default"}),
    Case("compiled with loss", _FASTER | _WHOLE),
    Case("captured", _CAPTURED),
    Case("captured stack", _FASTER | _HALF | _CAPTURED),
    Case("captured, compiled", _FASTER | _HALF | _CAPTURED | _WHOLE),
    Case("reduce-overhead stack", _FASTER | _HALF | {"compile.mode": "reduce-overhead"}),
)

# Loops that run under every setting that compiles, and what the others run under in turn.
COMPILED_IN_FULL = frozenset({"plain", "nanogpt_step", "resume_adamw", "one_by_one"})
_COMPILED_STACKS = ("compiled stack", "compiled with loss", "captured, compiled", "reduce-overhead stack")


def cases_of(loop: Loop, device: str) -> list[Case]:
    """Every setting that applies to a loop on a device, one by one, and the stacks with what applies of them."""
    found = {NOTHING.name: NOTHING}
    for key in (recipe.key for recipe in CATALOG if recipe.key not in LEFT_OUT):
        for value in values_of(key)[0]:
            settings = applicable({key: value}, loop, device)
            if settings:
                found[f"{key}: {value}"] = Case(f"{key}: {value}", {**_BESIDE.get(key, {}), **settings})
    for stack in STACKS:
        settings = applicable(stack.settings, loop, device)
        if settings:
            found[stack.name] = Case(stack.name, settings)
    return [case for case in found.values() if CATALOG.conflict({**case.settings, **loop.always}) is None]


# Cases that time kernels, which takes up to a minute; run when they are asked for.
TIMES_KERNELS = ("compile.mode: max-autotune", "compile.mode: max-autotune-no-cudagraphs")


def is_usual(case: Case, loop: Loop, place: int, *, every: bool) -> bool:
    """Whether a case is run: compiling takes seconds, so most loops do it under one stack, unless ``every`` is asked.

    Kernels are timed in a few loops then, too.
    """
    if not case.compiles:
        return True
    if case.name in TIMES_KERNELS:
        return every and loop.name in COMPILED_IN_FULL
    return every or loop.name in COMPILED_IN_FULL or case.name == _COMPILED_STACKS[place % len(_COMPILED_STACKS)]


def applicable(settings: Mapping[str, Value], loop: Loop, device: str) -> dict[str, Value]:
    """Those of some settings that concern a loop on a device."""
    return {key: value for key, value in settings.items() if _applies(key, value, loop, device)}


def _applies(key: str, value: Value, loop: Loop, device: str) -> bool:
    recipe, needed = CATALOG.by_key(key), set(values_of(key)[1].split())
    if loop.mode not in recipe.modes or device not in recipe.devices or not needed <= loop.traits:
        return False
    if key.startswith("optimizer.") and "any_optimizer" in loop.traits:
        return False
    if key == "optimizer.class":
        return {"lars": "sgd", "lamb": "adam"}[str(value)] in loop.traits
    if key == "compile.scope":
        return value == ("regional" if "step" not in loop.traits else value) and (
            value == "with_loss" or "blocks" in loop.traits
        )
    if device == "cpu":
        return (key, value) not in _GPU_VALUES
    return True


# Values that mean something on a GPU only.
_GPU_VALUES = frozenset(
    {
        ("attention.backend", "efficient"),
        ("attention.backend", "cudnn"),
        ("compile.mode", "reduce-overhead"),
        ("compile.mode", "max-autotune"),
        ("compile.mode", "max-autotune-no-cudagraphs"),
        ("precision.float32_matmul", "high"),
    }
)


# --- tolerances -----------------------------------------------------------------------------------------------

# Arithmetic in the same precision and another order, over 50 steps: relative; about ten times what these loops show.
_REORDERED = Tolerance(losses=1e-4, outputs=1e-3, movement=1e-3, states=2e-2)
_SAME = Tolerance(losses=0.0, outputs=0.0, movement=0.0, states=0.0)
_NOT_COMPARED = Tolerance(None, None, None, None)


def tolerance_of(settings: Mapping[str, Value], mode: Mode, device: str) -> Tolerance:
    """How far a run under these settings may be from the plain one, by what their recipes declare.

    The plain run has the same arithmetic: alone it changes nothing then, but beside others it makes what they round
    differently count.
    """
    others = {key: value for key, value in settings.items() if key != "precision.autocast"}
    declared = {CATALOG.by_key(key).numerics_of(value, mode) for key, value in others.items()}
    if Numerics.CHANGED in declared:
        return _NOT_COMPARED
    if Numerics.CLOSE not in declared and device == "cpu":
        return _SAME  # a GPU adds in any order, from one run to the next
    return _wider(_REORDERED, CATALOG.rounding(settings))


def _wider(base: Tolerance, rounding: float) -> Tolerance:
    """Roundings of half precision add up over the steps; the figures are those of these loops with a margin."""
    if not rounding:
        return base
    scale: dict[str, Any] = {"losses": 16, "outputs": 32, "movement": 48, "states": 128}
    return Tolerance(**{name: max(getattr(base, name), factor * rounding) for name, factor in scale.items()})
