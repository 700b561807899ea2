"""Precision of float32 products

What it does: Lets float32 matrix products run on the tensor cores, which round their inputs to TensorFloat-32
(`torch.set_float32_matmul_precision("high")`). Convolutions do so by default; if your program has switched that off, it
is switched on again. On a CPU `medium` lets products round their inputs to bfloat16.

Why it helps: Products of rounded inputs are several times faster: TensorFloat-32 on Ampere and later GPUs, bfloat16 on
CPUs with AMX (1.5 to 4 times). Neither the model nor the loop has to change.

When it does not: There is no gain under autocast, with half-precision weights, or if the step waits for input or
launches. A convolutional network gains only in its linear layers. On CUDA, `medium` uses the same kernels as `high` so
far. On a CPU `high` changes nothing; without AMX, `medium` stays in float32 with another library, which can be slower.

Numerics: close: inputs keep 10 of their 23 mantissa bits with `high`, 7 with `medium` on a CPU; sums stay in float32.

References: PyTorch documentation, CUDA semantics, TensorFloat-32. PyTorch Performance Tuning Guide, Enable Tensor
Cores. Hugging Face, Efficient training on a single GPU, TF32. PyTorch pull request 116015 (products on a CPU).
"""

from advisor.recipe import Recipe, Stage, is_host_bound, lacks_units, runs_in_half, unless_computed
from advisor.records import Bottleneck, Facts, Proposal, Skip, Value

# On a CPU with AVX-512 BF16 but without AMX, oneDNN 3.13 did not use bfloat16, although it was permitted.
_CPU_UNITS = "amx_bf16"
_PRODUCTS = ("linear", "attention", "recurrent", "batched_product", "conv1d", "conv2d", "conv3d")
_NO_PRODUCT = "the step computes no linear, attention, recurrent or convolution layer and no matrix product"


class Tf32(Recipe):
    key = "precision.float32_matmul"
    values = ("highest", "high", "medium")
    attacks = frozenset({Bottleneck.COMPUTE})
    usual = frozenset({"high"})
    stage = Stage.GLOBAL
    roundings = {"high": 2.0**-11, "medium": 2.0**-8}  # `medium` permits bfloat16, though no kernel on CUDA uses it yet
    codes = {"highest": 'torch.set_float32_matmul_precision("highest")\n'}
    shown = 'torch.set_float32_matmul_precision("{value}")\ntorch.backends.cudnn.allow_tf32 = True\n'

    def candidates(self, facts: Facts) -> Proposal:
        workload = facts.workload
        if facts.on_cuda and (too_old := lacks_units(facts, "tf32")):
            return too_old
        if not facts.on_cuda and _CPU_UNITS not in facts.hardware.host.cpu_features:
            return Skip("this CPU has no AMX units, so PyTorch multiplies float32 in full precision")
        if "float32" not in workload.parameter_dtypes:
            return Skip("no parameter is in float32, so no product is either")
        if nothing := unless_computed(facts, *_PRODUCTS, reason=_NO_PRODUCT):
            return nothing
        if facts.current("precision.autocast", "none") != "none":
            return Skip("autocast already computes the products in another type")
        return ["high", "medium"] if facts.on_cuda else ["medium"]

    def gain_for(self, facts: Facts, value: Value) -> float:
        if runs_in_half(facts) or (value == "high" and not facts.on_cuda):
            return 1.0
        # tests/gpu/RESULTS.md: 2.71x and 2.42x on transformers, 1.0x with autocast and on small models. A single
        # product on a CPU with AMX: 1.2x to 4.0x (PyTorch pull request 116015).
        return 1.05 if is_host_bound(facts) else 1.3
