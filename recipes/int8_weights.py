"""Integer weights

What it does
------------
Stores the weights of linear layers as integers, with torchao's `quantize_`: `int8wo` keeps 8-bit weights and computes
in the model's type; `int8dq` also rounds each row of the input to 8 bits and multiplies integers; `int4wo` keeps
4-bit weights in groups of 128 that share a scale.

Why it helps
------------
Reading the weights is most of the work where few rows meet large layers, as in generating text one token at a time:
a quarter or an eighth of the bytes is read in that much less time. Integer tensor cores multiply twice as fast as
bfloat16 ones, which `int8dq` uses on large batches.

When it does not
----------------
Without torch.compile the weights are expanded in an operation of their own before each product, which costs more than
it saves. With many rows per layer the products are the work, and weight-only values slow them down. Convolutions
and embeddings stay as they are. `int4wo` needs bfloat16 parameters and a GPU of compute capability 8.0.

Numerics
--------
changed: weights are rounded to 256 or 16 levels. Measure the accuracy of your task before you serve it.

References
----------
torchao documentation, torchao.quantization, Int8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig,
Int4WeightOnlyConfig. Dettmers et al., LLM.int8(), NeurIPS 2022.
"""

from typing import Any

from advisor.errors import RefusedError
from advisor.recipe import INFERENCE, Components, Recipe, Stage, is_compiled, without_package
from advisor.records import Bottleneck, Facts, Phase, Proposal, Skip, Value, Values

_CONFIGS = {
    "int8wo": "Int8WeightOnlyConfig",
    "int8dq": "Int8DynamicActivationInt8WeightConfig",
    "int4wo": "Int4WeightOnlyConfig",
}
_LEVELS = {"int8wo": 2.0**-8, "int8dq": 2.0**-8, "int4wo": 2.0**-4}
_INT4_GROUP = 128
# Up to this batch size reading the weights takes longer than multiplying them. Samples; 1 gained, 64 lost (RESULTS.md).
_FEW_SAMPLES = 8
# The packing whose kernel is a part of PyTorch.
_INT4_OPTIONS = {"group_size": _INT4_GROUP, "int4_packing_format": "tile_packed_to_4d"}


class Int8Weights(Recipe):
    key = "precision.quantize"
    values = ("none", *_CONFIGS)
    modes = INFERENCE
    attacks = frozenset({Bottleneck.MEMORY, Bottleneck.COMPUTE})
    partners = frozenset({"compile", "half_weights"})
    stage = Stage.MODEL
    saves_memory = True
    order = 1
    package = "torchao"
    phases = frozenset({Phase.FORWARD})

    def candidates(self, facts: Facts) -> Proposal:
        if not facts.workload.linear_shapes:
            return Skip("the model has no linear layers, and only those are quantized")
        if missing := without_package(self.package, at_least=(0, 14)):
            return missing
        return ["int8wo", "int8dq", "int4wo"] if _has_int4(facts) else ["int8wo", "int8dq"]

    def gain_for(self, facts: Facts, value: Value) -> float:
        # tests/gpu/RESULTS.md: int8wo 1.52x for one sample and compiled, 0.68x otherwise, 1.20x on a CPU; int8dq 0.16x.
        if value == "int8dq":
            return 0.97 if not facts.on_cuda else 0.5
        few = not facts.on_cuda or (is_compiled(facts) and (facts.workload.batch_size or 1) <= _FEW_SAMPLES)
        return 1.2 if few else 0.7

    def apply(self, workload: Components, value: Value) -> None:
        if value == self.default:
            return
        if value == "int4wo" and "torch.bfloat16" not in {str(one.dtype) for one in workload.model.parameters()}:
            raise RefusedError("int4 weights need bfloat16 parameters: set precision.weights: bfloat16 as well")
        from torchao import quantization

        options: dict[str, Any] = _INT4_OPTIONS if value == "int4wo" else {}
        quantization.quantize_(workload.model, getattr(quantization, _CONFIGS[str(value)])(**options))

    def code(self, value: Value) -> str:
        if value == self.default:
            return "# the linear layers keep their weights\n"
        config = _CONFIGS[str(value)]
        options = ", ".join(f"{name}={option!r}" for name, option in _INT4_OPTIONS.items()) if value == "int4wo" else ""
        quoted = options.replace("'", '"')
        return f"from torchao.quantization import {config}, quantize_\n\nquantize_(model, {config}({quoted}))\n"

    def conflict(self, value: Value, settings: Values) -> str | None:
        if value != self.default and settings.get("precision.float8", "none") != "none":
            return "precision.quantize and precision.float8 both replace the weights of the linear layers"
        if value == "int4wo" and settings.get("precision.weights", "bfloat16") != "bfloat16":
            return "the int4 product computes in bfloat16, so precision.weights must be bfloat16"
        return None

    def rounding(self, value: Value) -> float:
        return _LEVELS.get(str(value), 0.0)


def _has_int4(facts: Facts) -> bool:
    """Whether the int4 product can run: in bfloat16, on a GPU that has it, for inputs in whole groups."""
    workload = facts.workload
    suits = any(inputs % _INT4_GROUP == 0 for inputs, _, _ in workload.linear_shapes)
    capable = facts.on_cuda and workload.multiplies_in("bfloat16")
    return suits and capable and workload.parameter_dtypes == ("bfloat16",)
