"""torch.compile

What it does: Traces the model and generates fused kernels: Triton on a GPU, C++ on a CPU. `reduce-overhead` also
replays them from CUDA graphs; the `max-autotune` modes also time several kernels for each matrix product. The model is
compiled in place (`model.compile()`): it stays the same object, and its state dict keeps its names.

Why it helps: A chain of pointwise operations and reductions becomes one kernel that reads and writes memory once, and
Python and the dispatcher cost less time.

When it does not: The first steps compile for seconds to minutes, and again when a shape changes. Graph breaks
(printing, `.item()`) leave little to fuse, and a step of large matrix products has few kernels to merge. The code is
compiled again for a Python number that changed; after eight times it runs uncompiled. An exported Python file or diff
may keep the old number instead (PyTorch 2.14): set `TORCHINDUCTOR_AUTOGRAD_CACHE=0`. A tensor that the model or the
loss writes in a step and multiplies by may get wrong gradients. Compiled code ignores hooks added later, and layers
frozen or unfrozen later (before PyTorch 2.12). It has no second derivatives, and draws by Python's `random` in
`forward` are wrong. With `reduce-overhead` and `max-autotune`, your own loop must call
`torch.compiler.cudagraph_mark_step_begin()` before each step and copy the tensors that it keeps.

Numerics: close: fused kernels sum in another order, and dropout draws other random numbers.

References: PyTorch documentation, torch.compile and torch.nn.Module.compile. PyTorch Performance Tuning Guide.
"""

from advisor.recipe import MODES_WITH_GRAPHS, NOT_COMPILED, Recipe, is_host_bound
from advisor.records import Bottleneck, Facts, Mode, Proposal, Value, Values

_CPU_MODES = ("default", "max-autotune-no-cudagraphs")
_CUDA_MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")


class Compile(Recipe):
    key = "compile.mode"
    values = ("none", *_CUDA_MODES)
    plan_field = "compile_mode"
    compiles = True
    costs = dict.fromkeys(("max-autotune", "max-autotune-no-cudagraphs"), 4.0)
    attacks = frozenset({Bottleneck.LAUNCH, Bottleneck.MEMORY})
    codes = {"none": 'model = getattr(model, "_orig_mod", model)  # as it is without torch.compile\n'}
    shown = 'model.compile(mode="{value}")\n'

    def candidates(self, facts: Facts) -> Proposal:
        modes: tuple[str, ...] = _CUDA_MODES if facts.on_cuda else _CPU_MODES
        # The graphs of these modes must know where a step begins; only one model's forward pass in training shows that.
        if facts.workload.own_step and (facts.workload.models > 1 or facts.workload.mode is Mode.INFER):
            modes = tuple(mode for mode in modes if mode not in MODES_WITH_GRAPHS)
        scope = facts.current("compile.scope", "model")
        # With any scope but `model`, the mode `default` is used already if no mode is set.
        return [mode for mode in modes if scope == "model" or mode != "default"]

    def gain_for(self, facts: Facts, value: Value) -> float:
        # The CUDA graphs of a mode gain time if the step is host-bound and not captured in a graph already.
        autotuned = 1.05 if str(value).startswith("max-autotune") and facts.on_cuda else 1.0
        # If the step cannot be captured, the host launches every kernel.
        uncaptured = facts.workload.own_step or facts.workload.takes_arguments_only or facts.workload.graph_problem
        waits = is_host_bound(facts) or (uncaptured and facts.profile is None)
        replayed = 1.3 if value in MODES_WITH_GRAPHS and waits else 1.0
        return autotuned * replayed

    def conflict(self, value: Value, settings: Values) -> str | None:
        others = [key for key, off in NOT_COMPILED.items() if key != self.key and settings.get(key, off) != off]
        if value == "none" and others:
            return f"{others[0]} compiles the model, and compile.mode is none"
        if value in MODES_WITH_GRAPHS and settings.get("step.cuda_graph"):
            return f"compile.mode {value} records its own CUDA graphs, which step.cuda_graph cannot capture"
        return None
