"""Integer weights

What it does:
Stores the weights of linear layers as integers, with torchao's `quantize_`. `int8wo` keeps 8-bit weights and computes
in the model's type; `int8dq` also rounds each row of the input to 8 bits and multiplies integers; `int4wo` keeps 4-bit
weights in groups of 128 that share a scale.

Why it helps:
Where few rows meet large layers, as in generating text, reading the weights is most of the work: a quarter or an eighth
of the bytes takes that much less time. `int8dq` uses integer tensor cores, twice as fast as bfloat16, on large batches.

When it does not:
Without torch.compile an operation of its own expands the weights before each product, which costs more than it saves.
With many rows per layer weight-only values slow the products down. Convolutions and embeddings stay as they are.
`int4wo` needs bfloat16 parameters and a GPU of compute capability 8.0.

Numerics:
changed: weights are rounded to 256 or 16 levels. Measure the accuracy of your task before you serve it.

References:
torchao documentation, torchao.quantization. Dettmers et al., LLM.int8(), NeurIPS 2022.
"""

from advisor.errors import RefusedError
from advisor.recipe import INFERENCE, Components, Recipe, Stage, is_compiled, without_package
from advisor.records import Bottleneck, Facts, Phase, Proposal, Skip, Value, Values

_INT4_GROUP = 128
# Up to this batch size reading the weights takes longer than multiplying them. Samples; 1 gained, 64 lost (RESULTS.md).
_FEW_SAMPLES = 8
_CODE = "from torchao.quantization import {config}, quantize_\n\nquantize_(model, {config}({options}))\n"


class Int8Weights(Recipe):
    key = "precision.quantize"
    codes = {
        "none": "# the linear layers keep their weights\n",
        "int8wo": _CODE.format(config="Int8WeightOnlyConfig", options=""),
        "int8dq": _CODE.format(config="Int8DynamicActivationInt8WeightConfig", options=""),
        "int4wo": _CODE.format(  # the packing whose kernel is a part of PyTorch
            config="Int4WeightOnlyConfig", options=f'group_size={_INT4_GROUP}, int4_packing_format="tile_packed_to_4d"'
        ),
    }
    values = tuple(codes)
    modes = INFERENCE
    attacks = frozenset({Bottleneck.MEMORY, Bottleneck.COMPUTE})
    stage = Stage.MODEL
    saves_memory = True
    roundings = {"int8wo": 2.0**-8, "int8dq": 2.0**-8, "int4wo": 2.0**-4}
    excludes = {"precision.float8": "precision.quantize and precision.float8 both replace the weights of linear layers"}
    order = 1
    package = "torchao"
    phases = frozenset({Phase.FORWARD})

    def candidates(self, facts: Facts) -> Proposal:
        if not facts.workload.linear_shapes:
            return Skip("the model has no linear layers, and only those are quantized")
        if missing := without_package(self.package, at_least=(0, 14)):
            return missing
        workload = facts.workload
        in_groups = any(inputs % _INT4_GROUP == 0 for inputs, _, _ in workload.linear_shapes)
        capable = facts.on_cuda and workload.multiplies_in("bfloat16") and workload.parameter_dtypes == ("bfloat16",)
        return ["int8wo", "int8dq", "int4wo"] if in_groups and capable else ["int8wo", "int8dq"]

    def gain_for(self, facts: Facts, value: Value) -> float:
        # tests/gpu/RESULTS.md: int8wo 1.52x for one sample and compiled, 0.68x otherwise, 1.20x on a CPU; int8dq 0.16x.
        if value == "int8dq":
            return 0.5 if facts.on_cuda else 0.97
        few = not facts.on_cuda or (is_compiled(facts) and (facts.workload.batch_size or 1) <= _FEW_SAMPLES)
        return 1.2 if few else 0.7

    def apply(self, workload: Components, value: Value) -> None:
        if value == "int4wo" and "torch.bfloat16" not in {str(one.dtype) for one in workload.model.parameters()}:
            raise RefusedError("int4 weights need bfloat16 parameters: set precision.weights: bfloat16 as well")
        self.run_code(workload, value)

    def conflict(self, value: Value, settings: Values) -> str | None:
        if value == "int4wo" and settings.get("precision.weights", "bfloat16") != "bfloat16":
            return "the int4 product computes in bfloat16, so precision.weights must be bfloat16"
        return super().conflict(value, settings)
