"""Regional compilation

What it does
------------
Compiles the blocks that the model repeats (the layers of a transformer, the blocks of a residual network), each in
place, and leaves the rest of the model as it is. Blocks that are alike are compiled once and share the code. Alone it
compiles in the mode `default`; beside `compile.mode` in that one. The model keeps its identity and the names of its
parameters.

Why it helps
------------
Compiling one layer instead of forty makes the first step come many times sooner, and most of what compilation gives
is inside the layers.

When it does not
----------------
Nothing is fused across blocks or outside them, so the step can be somewhat slower than with the whole model compiled;
a long run earns the longer compilation back. Blocks of several shapes, as in the stages of a convolutional network,
are compiled once for each shape. With few blocks there is little to save.

Numerics
--------
close: as for torch.compile, fused kernels round at other places and draw dropout from another stream.

References
----------
PyTorch tutorials, Reducing torch.compile cold start compilation time with regional compilation. PyTorch
documentation, torch.nn.Module.compile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from advisor.portable import compile_source
from advisor.recipe import Components, Recipe, Stage
from advisor.records import Bottleneck, Facts, Numerics, Skip, Value
from advisor.toolchain import missing_compiler


class CompileScope(Recipe):
    """`block.compile()` for each repeated block; the runtime compiles when the step is built."""

    id = "compile_scope"
    title = "Regional compilation"
    key = "compile.scope"
    default = "model"
    attacks = frozenset({Bottleneck.LAUNCH, Bottleneck.MEMORY})
    numerics = Numerics.CLOSE
    stage = Stage.COMPILE
    expensive = True
    partners = frozenset({"autocast", "compile"})

    def candidates(self, facts: Facts) -> Sequence[Value] | Skip:
        if not facts.workload.repeated_blocks:
            return Skip("the model repeats no block of layers that could be compiled by itself")
        return missing_compiler(facts) or ["regional"]

    def accepts(self, value: Value) -> bool:
        return value in ("model", "regional")

    def apply(self, workload: Components, value: Value) -> None:
        workload.plan = replace(workload.plan, compile_scope=str(value))

    def code(self, value: Value) -> str:
        return compile_source(scope="regional") if value == "regional" else "# torch.compile takes the whole model\n"

    def cost(self, value: Value) -> float:
        return 0.5

    def why(self, facts: Facts, value: Value) -> str:
        if value != "regional" or not facts.workload.repeated_blocks:
            return super().why(facts, value)
        name, count = facts.workload.repeated_blocks[0]
        return f"The model repeats {name} {count} times; compiling it by itself starts sooner than the whole model."
