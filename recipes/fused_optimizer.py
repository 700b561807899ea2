"""Optimizer implementation

What it does: Chooses how the optimizer updates the parameters: in a few kernels that hold the whole update (`fused`),
one kernel per operation over many tensors (`foreach`), or one per operation and tensor (`for-loop`). PyTorch takes
foreach on CUDA and the for-loop on the CPU. `fused` replaces apex's fused optimizers.

Why it helps: A fused update reads and writes parameters, gradients and state once, in a few kernels, not in hundreds.

When it does not: The gain is at most the optimizer's share of the step, small in most. foreach needs a temporary copy
as large as the parameters. Some classes, such as RMSprop, have no fused step; fused steps take no sparse gradients.

Numerics: close: the same formula, with intermediate results rounded at other places.

References: PyTorch documentation, torch.optim, Algorithms. NVIDIA ECCV 2020 tuning guide, fused apex blocks.
"""

from advisor.recipe import TRAINING, Bottleneck, Components, Facts, Phase, Proposal, Recipe, Skip, Stage, Value

_FLAGS: dict[Value, dict[str, bool | None]] = {
    "default": {"fused": None, "foreach": None},
    "fused": {"fused": True, "foreach": False},
    "foreach": {"fused": False, "foreach": True},
    "for-loop": {"fused": False, "foreach": False},
}


class FusedOptimizer(Recipe):
    key = "optimizer.implementation"
    values = tuple(_FLAGS)
    modes = TRAINING
    attacks = frozenset({Bottleneck.LAUNCH, Bottleneck.MEMORY})
    usual = frozenset({"fused"})
    stage = Stage.OPTIMIZER
    saves_memory = True
    phases = frozenset({Phase.OPTIMIZER})
    # tests/gpu/RESULTS.md: fused 1.02x alone on large models and 2.1x in the stack of a recommender; for-loop 0.59x to
    # 0.93x; 1.02x to 1.10x on a CPU. One kernel takes about half as long as several.
    gain = 1.02
    saves = {Phase.OPTIMIZER: 0.5}
    gains = {"for-loop": 0.8}

    def candidates(self, facts: Facts) -> Proposal:
        optimizer = facts.workload.optimizer
        if optimizer is None:
            return Skip("the workload has no optimizer")
        offered = set(optimizer.implementations)
        if not offered - {"for-loop"}:
            return Skip(f"{optimizer.name} has neither a fused nor a foreach implementation here")
        by_default = "foreach" if facts.on_cuda and "foreach" in offered else "for-loop"
        return [value for value in ("fused", "foreach", "for-loop") if value in offered and value != by_default]

    def apply(self, workload: Components, value: Value) -> None:
        from advisor.step.optimizer import set_options, sparse_parameters

        optimizer = workload.optimizer
        if optimizer is None:
            return
        # What the class does not know is off already.
        flags = {flag: on for flag, on in _FLAGS[value].items() if on or flag in optimizer.defaults}
        set_options(optimizer, sparse_parameters(workload.model), **flags)

    def code(self, value: Value) -> str:
        flags = ", ".join(f"{flag}={on}" for flag, on in _FLAGS[value].items())
        return (
            f"for group in optimizer.param_groups:\n    group.update({flags})\n"
            "optimizer.load_state_dict(optimizer.state_dict())  # moves the counts of earlier steps\n"
        )
