"""Float8 products

What it does: Computes the products of large linear layers in float8, with torchao. Each step scales the inputs to the
range of float8, with one factor for a tensor (`tensorwise`) or for each row (`rowwise`). Training keeps the parameters
and casts them (`convert_to_float8_training`); inference stores the weights in float8 (`quantize_`).

Why it helps: Tensor cores of Ada, Hopper and later GPUs multiply float8 twice as fast as bfloat16, and operands take
half the bytes.

When it does not: Scaling and casting read every operand once more. That costs more than it saves in models that are not
compiled, and in layers with less than about a million weights. The sizes of a layer must be multiples of 16, and in
training also the number of rows (samples times tokens). Converted layers lose their hooks. `rowwise` needs bfloat16.

Numerics: close: operands are rounded to 4 bits of precision (3 for tensorwise gradients); sums stay in float32. The
effect on training shows in the loss after many steps, not in the first few.

References: torchao documentation, torchao.float8; torchao.quantization. Micikevicius et al., FP8 Formats, 2022.
"""

from dataclasses import replace

from advisor.recipe import CUDA, Components, Recipe, Stage, is_compiled, lacks_units, without_package
from advisor.records import Bottleneck, Facts, Mode, Phase, Proposal, Skip, Value

# Float8 products need sizes in multiples of 16. With fewer than _LARGE weights, the casts cost more than the gain.
_MULTIPLE = 16
_LARGE = 2**20
_GRANULARITY = {"tensorwise": "PerTensor", "rowwise": "PerRow"}

_CODE = """\
def is_large(module, name):
    sizes = (module.in_features, module.out_features) if type(module) is torch.nn.Linear else (1, 1)
    return all(size % {multiple} == 0 for size in sizes) and sizes[0] * sizes[1] >= {large}


if optimizer is not None:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig.from_recipe_name("{value}")
    model = convert_to_float8_training(model, config=config, module_filter_fn=is_large)
else:
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, {granularity}, quantize_

    config = Float8DynamicActivationFloat8WeightConfig(granularity={granularity}())
    quantize_(model, config, filter_fn=is_large)
"""


class Float8(Recipe):
    key = "precision.float8"
    devices = CUDA
    attacks = frozenset({Bottleneck.COMPUTE, Bottleneck.MEMORY})
    stage = Stage.MODEL
    order = 1
    roundings = {"tensorwise": 2.0**-4, "rowwise": 2.0**-4}
    values = ("none", *_GRANULARITY)
    codes = {
        value: _CODE.format(multiple=_MULTIPLE, large=_LARGE, value=value, granularity=granularity)
        for value, granularity in _GRANULARITY.items()
    }
    package = "torchao"
    phases = frozenset({Phase.FORWARD, Phase.BACKWARD})

    def candidates(self, facts: Facts) -> Proposal:
        workload = facts.workload
        large = [(inputs, outputs) for inputs, outputs, _ in workload.linear_shapes if inputs * outputs >= _LARGE]
        if all(inputs % _MULTIPLE or outputs % _MULTIPLE for inputs, outputs in large):
            wanted = f"sizes in multiples of {_MULTIPLE} and at least {_LARGE:,} weights"
            return Skip(f"no linear layer has {wanted}; smaller ones lose more to the casts than they gain")
        if missing := lacks_units(facts, "float8") or without_package(self.package, at_least=(0, 14)):
            return missing
        by_autocast = workload.mode is Mode.TRAIN and facts.current("precision.autocast", "none") == "bfloat16"
        in_bfloat16 = by_autocast or workload.parameter_dtypes == ("bfloat16",)
        return ["tensorwise", "rowwise"] if in_bfloat16 else ["tensorwise"]

    def gain_for(self, facts: Facts, value: Value) -> float:
        # tests/gpu/RESULTS.md: tensorwise 1.50x and rowwise 1.33x on wide layers; slower than bfloat16 on an encoder;
        # 0.25x without compilation, because of the casts.
        compiled_gain = 1.1 if value == "tensorwise" else 1.05
        return compiled_gain if is_compiled(facts) else 0.3

    def apply(self, workload: Components, value: Value) -> None:
        # The code trains if there is an optimizer. A step that the user wrote may hide the optimizer.
        parts = replace(workload, optimizer=workload.optimizer or workload.plan.mode is Mode.TRAIN or None)
        self.run_code(parts, value)
        workload.model = parts.model
