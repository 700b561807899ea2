"""Reductions in half precision

What it does
------------
Says whether cuBLAS may add up the partial sums of a bfloat16 or float16 matrix product in that type too
(`torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction` and its float16 twin). PyTorch allows it by
default; the other value keeps every sum in float32.

Why it helps
------------
When a long sum is divided among several blocks, their partial results take half the bytes in the reduced type, and
more of cuBLAS's kernels may be chosen.

When it does not
----------------
Only products whose sum is long against their output are divided at all; for the others the switch changes nothing.
It matters little on recent GPUs, where the usual result is no measurable difference: then the exact sums are free,
and the better choice. Nothing changes where no product runs in half precision.

Numerics
--------
close: allowed, partial sums are rounded to 8 (bfloat16) or 11 (float16) bits, and float16 ones can overflow above
65,504. Not allowed, they are kept in float32.

References
----------
PyTorch documentation, Numerical accuracy, Reduced Precision Reduction for FP16 and BF16 GEMMs; torch.backends.cuda.
NVIDIA cuBLAS documentation, cublasMath_t.
"""

from advisor.recipe import CUDA, Recipe, Stage, unless_computed
from advisor.records import Bottleneck, Facts, Proposal, Skip, Value

_HALF = frozenset({"bfloat16", "float16"})
_NO_PRODUCT = "the step computes no linear, attention or recurrent layer, whose products this concerns"


class ReducedReduction(Recipe):
    key = "precision.bf16_reduction"
    default = True
    devices = CUDA
    attacks = frozenset({Bottleneck.COMPUTE})
    partners = frozenset({"autocast", "half_weights"})
    stage = Stage.GLOBAL
    # Expected speed-up: Never shown to help (tests/gpu/RESULTS.md).
    gain = 1.0
    shown = (
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = {value}\n"
        "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = {value}\n"
    )

    def candidates(self, facts: Facts) -> Proposal:
        workload = facts.workload
        if nothing := unless_computed(facts, "linear", "attention", "recurrent", "batched_product", reason=_NO_PRODUCT):
            return nothing
        in_half = _HALF & {*workload.parameter_dtypes, facts.current("precision.autocast", "none")}
        # Of a float32 model, autocast or half-precision weights may still make one: the switch is tried beside them.
        may_be_in_half = "float32" in workload.parameter_dtypes and workload.multiplies_in("float16")
        if not in_half and not may_be_in_half:
            return Skip("no product runs in bfloat16 or float16, or could run so on this GPU")
        return [False, True]

    def rounding(self, value: Value) -> float:
        # Either way the products' results are in the half type; another order of the sums moves them by its last bit.
        return 2.0**-8
