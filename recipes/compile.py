"""torch.compile

What it does
------------
Traces the model and generates fused kernels for it: Triton on a GPU, C++ on a CPU. `reduce-overhead` also
replays the kernels from CUDA graphs; the `max-autotune` modes also time several kernels for each matrix product
and keep the best. The compiled model is a wrapper that shares the model's parameters: save checkpoints from the
model inside, whose names have no prefix.

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
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from advisor.recipe import Components, Recipe, Stage
from advisor.records import Bottleneck, Facts, Numerics, Skip, Value

_CPU_MODES = ("default", "max-autotune-no-cudagraphs")
_CUDA_MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")


class Compile(Recipe):
    """`torch.compile(model, mode=...)`; the runtime compiles when the step is built."""

    id = "compile"
    title = "torch.compile"
    key = "compile.mode"
    default = "none"
    attacks = frozenset({Bottleneck.LAUNCH, Bottleneck.MEMORY})
    numerics = Numerics.CLOSE
    stage = Stage.COMPILE
    expensive = True
    partners = frozenset({"autocast", "channels_last", "step_graph"})

    def candidates(self, facts: Facts) -> Sequence[Value] | Skip:
        if facts.on_cuda:
            return _no_triton(facts) or list(_CUDA_MODES)
        return _no_cpp_compiler() or list(_CPU_MODES)

    def accepts(self, value: Value) -> bool:
        return value in ("none", *_CUDA_MODES)

    def apply(self, workload: Components, value: Value) -> None:
        workload.plan = replace(workload.plan, compile_mode=str(value))

    def code(self, value: Value) -> str:
        return (
            "# torch.compile is not called\n" if value == "none" else f'model = torch.compile(model, mode="{value}")\n'
        )

    def cost(self, value: Value) -> float:
        return 4.0 if str(value).startswith("max-autotune") else 1.0

    def conflict(self, value: Value, settings: Mapping[str, Value]) -> str | None:
        if value in ("reduce-overhead", "max-autotune") and settings.get("step.cuda_graph"):
            return f"compile.mode {value} records CUDA graphs of its own, which cannot be captured into step.cuda_graph"
        return None


def _no_triton(facts: Facts) -> Skip | None:
    """Triton compiles the kernels itself, and their launchers with a C compiler."""
    capability = facts.workload.capability or (0, 0)
    if capability < (7, 0):
        have = ".".join(map(str, capability))
        return Skip(f"compute capability {have} is too old for Triton's kernels (7.0 and later work)")
    named = os.environ.get("CC")
    if named:
        return None if shutil.which(named) else Skip(f"the C compiler that $CC names, {named}, is not found")
    return None if _first_found("gcc", "clang") else Skip("torch.compile needs a C compiler: install gcc or clang")


def _no_cpp_compiler() -> Skip | None:
    """The CPU backend calls the compiler that $CXX names, or the platform's usual one; it looks for no other."""
    named = os.environ.get("CXX")
    if named:
        return None if shutil.which(named) else Skip(f"the C++ compiler that $CXX names, {named}, is not found")
    usual = "clang++" if sys.platform == "darwin" else "g++"
    if shutil.which(usual):
        return None
    other = _first_found("g++", "clang++", "c++")
    if other:
        return Skip(f"torch.compile looks for {usual}, which is not installed; set CXX={other} to use that one")
    return Skip(f"torch.compile needs a C++ compiler on the CPU: install {usual}, or name another in $CXX")


def _first_found(*names: str) -> str | None:
    return next((name for name in names if shutil.which(name)), None)
