"""Autotuned matrix products

What it does
------------
Has the compiler choose the kernel of each matrix product by timing those of the libraries against Triton's
(`max_autotune_gemm`), each size once. Nothing else is timed, unlike in the mode `max-autotune`. Alone it compiles in
the mode `default`; beside `compile.mode` in that one.

Why it helps
------------
A few large products take most of many steps, and the library's choice for their sizes can be beaten. A Triton kernel
also applies what follows the product, an activation or a bias, before it writes the result.

When it does not
----------------
Timing takes seconds for each size, the first time. cuBLAS is hard to beat in float32 and for square sizes; then its
kernels stay. GPUs with fewer than 68 multiprocessors are left out by the compiler.

Numerics
--------
close: another kernel sums in another order.

References
----------
PyTorch documentation, torch.compile, options of torch._inductor (`max_autotune_gemm`, `max_autotune_gemm_backends`).
"""

from advisor.recipe import CUDA, Recipe, unless_computed
from advisor.recipe.plan import AUTOTUNED_MATMULS
from advisor.records import Bottleneck, Facts, Proposal, Skip, Value, Values
from advisor.step import compile_source

_NO_PRODUCT = "the step computes no linear, attention or recurrent layer and no matrix product to choose a kernel for"


class CompileAutotune(Recipe):
    key = "compile.autotune"
    values = ("default", "matmuls")
    plan_field = "compile_autotune"
    compiles = True
    devices = CUDA
    attacks = frozenset({Bottleneck.COMPUTE})
    partners = frozenset({"autocast", "compile", "compile_scope", "pad_dims"})
    # Expected speed-up: GPT-2 on an H200 1.06x together with a padded vocabulary; nothing in its expert's stack.
    gain = 1.03

    def candidates(self, facts: Facts) -> Proposal:
        if nothing := unless_computed(facts, "linear", "attention", "recurrent", "batched_product", reason=_NO_PRODUCT):
            return nothing
        if str(facts.current("compile.mode", "none")).startswith("max-autotune"):
            return Skip("the mode max-autotune times the kernels of matrix products already")
        return ["matmuls"]

    def code(self, value: Value) -> str:
        if value == self.default:
            return "# the compiler leaves matrix products to the libraries\n"
        return compile_source(extras=AUTOTUNED_MATMULS)

    def cost(self, value: Value) -> float:
        return 2.0

    def conflict(self, value: Value, settings: Values) -> str | None:
        mode = str(settings.get("compile.mode", "none"))
        if value == self.default or not mode.startswith("max-autotune"):
            return None
        return f"compile.mode {mode} times the kernels of matrix products already"
