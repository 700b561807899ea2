"""Integer weights

What it does: Stores weights of linear layers as 8-bit integers and computes in the model's type (`int8wo`, torchao).

Why it helps: With few rows and large layers (text generation, for example), reading the weights is most of the work.
Half or a quarter of the bytes take correspondingly less time.

When it does not: Without torch.compile a separate operation expands the weights before each product, which costs more
than it saves. With many rows per layer the products become slower. Convolutions and embeddings are not changed.

Numerics: changed: weights are rounded to 256 levels. Measure the accuracy of your task before you serve it.

References: torchao documentation, torchao.quantization. Dettmers et al., LLM.int8(), NeurIPS 2022.
"""

from advisor.recipe import INFERENCE, Recipe, Stage, is_compiled, without_package
from advisor.records import Bottleneck, Facts, Phase, Proposal, Skip, Value

# Up to this batch size (samples), reading the weights takes longer than multiplying: 1 gained, 64 lost (RESULTS.md).
_FEW_SAMPLES = 8
_CODE = "from torchao.quantization import Int8WeightOnlyConfig, quantize_\n\nquantize_(model, Int8WeightOnlyConfig())\n"


class Int8Weights(Recipe):
    key = "precision.quantize"
    codes = {"none": "# the linear layers keep their weights\n", "int8wo": _CODE}
    modes = INFERENCE
    attacks = frozenset({Bottleneck.MEMORY, Bottleneck.COMPUTE})
    stage = Stage.MODEL
    saves_memory = True
    roundings = {"int8wo": 2.0**-8}
    excludes = {"precision.float8": "precision.quantize and precision.float8 both replace the weights of linear layers"}
    order = 1
    package = "torchao"
    phases = frozenset({Phase.FORWARD})

    def candidates(self, facts: Facts) -> Proposal:
        if not facts.workload.linear_shapes:
            return Skip("the model has no linear layers, and only those are quantized")
        return without_package(self.package, at_least=(0, 14)) or ["int8wo"]

    def gain_for(self, facts: Facts, value: Value) -> float:
        # tests/gpu/RESULTS.md: 1.52x for one sample with a compiled model, 0.68x otherwise, 1.20x on a CPU.
        few = not facts.on_cuda or (is_compiled(facts) and (facts.workload.batch_size or 1) <= _FEW_SAMPLES)
        return 1.2 if few else 0.7
