"""Outputs padded

What it does: Pads the outputs of each linear layer to the next multiple of 8 or 64, and returns a view without the
padding: a vocabulary of 50,257 is computed as 50,304, and the loss sees 50,257. Layers that would grow by more than an
eighth are not padded.

Why it helps: Tensor cores multiply tiles. If the length of a row is not a multiple of 16 bytes, the library uses slower
kernels or copies first. This matters in half precision and TF32.

When it does not: In float32 without TF32 no tensor core is used. Each call copies the weight and adds rows of zeros,
which pays off for a large batch but perhaps not for a small one. The next operation reads a view whose rows are not
adjacent: for a small layer that can cost more than it gains.

Numerics: close: other kernels round differently. Parameters, optimizer and state dict do not contain the zeros.

References: NVIDIA Deep Learning Performance, Matrix Multiplication. PyTorch Performance Tuning Guide.
"""

from advisor.recipe import CUDA, Recipe, WholeNumbers, lacks_units, runs_in_half
from advisor.records import Bottleneck, Facts, Proposal, Skip, Value


class PadDims(Recipe):
    key = "model.pad_to_multiple"
    values = WholeNumbers(1, such_as=(1, 2, 8, 64))
    devices = CUDA
    attacks = frozenset({Bottleneck.COMPUTE})
    calls = (("padding", "pad_outputs(model, {value})"),)
    excludes = {
        "precision.quantize": "quantized layers have their own kernels, which take no padding",
        "precision.float8": "float8 layers replace the padded ones",
    }

    def candidates(self, facts: Facts) -> Proposal:
        if lacking := lacks_units(facts, "float16", "tensor cores, which the multiples are for"):
            return lacking
        multiples = [multiple for multiple, _, _ in facts.workload.paddable_outputs]
        return multiples or Skip("no linear layer needs padding to a multiple of 64 that adds at most an eighth")

    def gain_for(self, facts: Facts, value: Value) -> float:
        # tests/gpu/RESULTS.md, for a vocabulary: 1.29x and 1.03x on GPT-2; 24.8 to 23.3 ms with autotuned kernels.
        fast = runs_in_half(facts) or facts.current("precision.float32_matmul", "highest") != "highest"
        return 1.06 if fast and any(widest > 2**12 for *_, widest in facts.workload.paddable_outputs) else 1.0

    def why(self, facts: Facts, value: Value) -> str:
        for multiple, layers, widest in facts.workload.paddable_outputs:
            if multiple == value:
                which = "One linear layer is" if layers == 1 else f"{layers} linear layers are"
                return f"{which} off the multiple of {value}; the widest has {widest:,} outputs."
        return super().why(facts, value)
