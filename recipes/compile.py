"""torch.compile

What it does
------------
Traces the model and generates fused kernels for it: Triton on a GPU, C++ on a CPU. `reduce-overhead` also
replays the kernels from CUDA graphs; the `max-autotune` modes also time several kernels for each matrix product
and keep the best. `model.compile(mode=...)` does it in place, so the module, its parameter names and its state
dict stay as they are.

Why it helps
------------
Chains of pointwise operations and reductions become one kernel that reads and writes memory once, and Python
and the dispatcher leave the inner loop.

When it does not
----------------
The first steps compile for seconds to minutes, and again when a shape changes; a short run never earns that
back. Graph breaks (printing, `.item()`, unsupported Python) leave small graphs with little to fuse. A step that
is spent in large matrix products already has few kernels to merge, and a step that waits for input has no use
for a faster model.

Numerics
--------
close: fused kernels keep intermediate results in registers and sum in another order, and random numbers for
dropout are drawn from another stream.

References
----------
PyTorch documentation, torch.compile and torch.compiler. PyTorch Performance Tuning Guide, Fuse operations.
Ansel et al., PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode Transformation and Graph
Compilation, ASPLOS 2024.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace

from advisor.recipe import Components, Recipe, Stage
from advisor.records import Bottleneck, Facts, Numerics, Skip, Value

_CPU_MODES = ("default", "max-autotune-no-cudagraphs")
_CUDA_MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")


class Compile(Recipe):
    """`model.compile(mode=...)`; the runtime compiles when the step is built."""

    id = "compile"
    title = "torch.compile"
    key = "compile.mode"
    default = "none"
    attacks = frozenset({Bottleneck.LAUNCH, Bottleneck.MEMORY})
    numerics = Numerics.CLOSE
    stage = Stage.COMPILE
    expensive = True

    def candidates(self, facts: Facts) -> Sequence[Value] | Skip:
        if facts.on_cuda:
            return _no_triton(facts) or list(_CUDA_MODES)
        return _no_compiler("CXX", "g++", "clang++", "c++") or list(_CPU_MODES)

    def accepts(self, value: Value) -> bool:
        return value in ("none", *_CUDA_MODES)

    def apply(self, workload: Components, value: Value) -> None:
        workload.plan = replace(workload.plan, compile_mode=str(value))

    def code(self, value: Value) -> str:
        return "# model.compile() is not called\n" if value == "none" else f'model.compile(mode="{value}")\n'

    def conflict(self, value: Value, settings: Mapping[str, Value]) -> str | None:
        if value in ("reduce-overhead", "max-autotune") and settings.get("step.cuda_graph"):
            return f"compile.mode {value} records CUDA graphs of its own, which cannot be captured into step.cuda_graph"
        return None


def _no_triton(facts: Facts) -> Skip | None:
    capability = facts.workload.capability or (0, 0)
    if capability < (7, 0):
        have = ".".join(map(str, capability))
        return Skip(f"compute capability {have} is too old for Triton's kernels (7.0 and later work)")
    return _no_compiler("CC", "gcc", "clang", "cc")


def _no_compiler(variable: str, *names: str) -> Skip | None:
    """Triton builds its launchers with a C compiler, the CPU backend its kernels with a C++ compiler."""
    named = os.environ.get(variable)
    wanted = (named,) if named else names
    if any(shutil.which(name) for name in wanted):
        return None
    language = "C++" if variable == "CXX" else "C"
    if named:
        return Skip(f"the {language} compiler that ${variable} names, {named}, is not found")
    return Skip(f"torch.compile needs a {language} compiler, and none of {', '.join(names)} is installed")
