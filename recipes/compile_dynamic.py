"""Dynamic shapes in torch.compile

What it does:
Says what the compiler does with sizes. `auto` compiles for the first sizes, and once more with a size left open when
that changes. `true` leaves sizes open from the start; `false` compiles for every combination of sizes. Without
`compile.mode` it compiles in the mode `default`.

Why it helps:
Batches of many lengths make `auto` compile at least twice; `true` compiles once.

When it does not:
Batches of one shape leave nothing to choose. Code for one size is faster than code for any: padding the batches to few
lengths is better. `false` is not tried: PyTorch stops compiling after eight shapes.

Numerics:
close: as for torch.compile, fused kernels round at other places and draw dropout from another stream.

References:
PyTorch documentation, torch.compile (`dynamic`), and Dynamic shapes.
"""

from advisor.recipe import Recipe
from advisor.records import Bottleneck, Facts, Proposal, Skip


class CompileDynamic(Recipe):
    key = "compile.dynamic"
    values = ("auto", True, False)
    plan_field = "compile_dynamic"
    compiles = True
    attacks = frozenset({Bottleneck.LAUNCH, Bottleneck.MEMORY})
    gains = {True: 1.09, False: 0.5}  # tests/gpu/RESULTS.md: 1.09x on lengths that vary; false compiles for each length
    codes = {"auto": "# torch.compile finds out which sizes change\n"}
    shown = "model.compile(dynamic={value})\n"

    def candidates(self, facts: Facts) -> Proposal:
        same = Skip("every batch that was looked at has the same shapes")
        return [True] if facts.workload.varying_shapes else same
