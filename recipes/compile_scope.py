"""Scope of compilation

What it does: `regional` compiles the blocks that the model repeats (the layers of a transformer), each in place; like
blocks are compiled once. `with_loss` compiles model and loss as one. `pointwise` compiles only functions of pointwise
operations, such as a formula written out, as `torch.jit.script` did. Alone each compiles in the mode `default`.

Why it helps: Compiling one layer instead of forty makes the first step come many times sooner. A loss over many classes
reads and writes the largest tensor several times; compiled with the last layer, once or twice.

When it does not: `regional` fuses nothing across blocks, and compiles blocks of several shapes for each shape.
`with_loss` gains nothing where the loss is a small share of the step. `pointwise` leaves reductions, norms and matrix
products alone: compiling all fuses more. A queue that the loss writes gets wrong gradients by `with_loss`.

Numerics: close: as for torch.compile, kernels round elsewhere and draw dropout from another stream (not `pointwise`).

References: PyTorch documentation, torch.nn.Module.compile, and Custom Backends. NVIDIA ECCV 2020 tuning guide (JIT).
"""

from advisor.errors import RefusedError
from advisor.figures.formatting import format_percent
from advisor.recipe import Bottleneck, Components, Facts, Mode, Phase, Proposal, Recipe, Skip, Value, Values, code_of

# Low enough for both shares that sessions on an H200 measured of a small encoder: less than 0.5 %, and 0.9 %.
_LEAST_SHARE = 0.001
_REGIONAL = """\
for block in model.layers:  # the blocks that your model repeats, by their name in it
    block.compile()
"""
_WITH_LOSS = """\
@torch.compile
def compiled_loss(inputs, target):
    return loss_fn(model(inputs), target)
"""


class CompileScope(Recipe):
    key = "compile.scope"
    values = ("model", "regional", "with_loss", "pointwise")
    plan_field = "compile_scope"
    compiles = True
    attacks = frozenset({Bottleneck.LAUNCH, Bottleneck.MEMORY})
    usual = frozenset({"with_loss"})
    # tests/gpu/RESULTS.md: with_loss 10.31x and regional 9.36x in one session; pointwise (then by another fuser) 1.58x
    # and 1.43x on handwritten formulas, 0.78x on a served network.
    gains = {"with_loss": 1.05, "regional": 0.97, "pointwise": 0.85}
    # On H200s' hosts about 30 s of T5-small's 50, and more than 20 of a small Whisper's 28.
    costs = {"regional": 0.6, "pointwise": 0.5}
    codes = {"regional": _REGIONAL, "with_loss": _WITH_LOSS}

    def candidates(self, facts: Facts) -> Proposal:
        if facts.workload.takes_arguments_only:
            return Skip("the Trainer compiles the whole model, as compile.mode says")
        # Blocks of many shapes take as long as the model: the eight of a ResNet-50 37 s on an H200's host, all 33 s.
        blocks, shapes = facts.workload.repeated_blocks, facts.workload.block_shapes
        sees_loss = facts.workload.mode is Mode.TRAIN and not facts.workload.own_step
        # Other settings shorten the rest of a step several times, but not the loss.
        loss_counts = facts.profile is None or facts.profile.share(Phase.LOSS) >= _LEAST_SHARE
        values = ["with_loss"] if sees_loss and loss_counts else []
        return [*values, *(["regional"] if blocks and 3 * shapes <= sum(one[1] for one in blocks) else []), "pointwise"]

    def apply(self, workload: Components, value: Value) -> None:
        from advisor.inlined.blocks import repeated_blocks

        if value == "regional" and not repeated_blocks(workload.model):
            raise RefusedError(f"{type(workload.model).__name__} repeats no block that could be compiled by itself")
        super().apply(workload, value)

    def code(self, value: Value) -> str:
        if value == "pointwise":
            return code_of("pointwise", "model.compile(backend=pointwise_only)")
        return super().code(value)

    def conflict(self, value: Value, settings: Values) -> str | None:
        mode = settings.get("compile.mode", "none")
        if value == "pointwise" and mode not in ("none", "default"):
            return f"compile.scope pointwise compiles in the mode default, not in compile.mode {mode}"
        return None

    def why(self, facts: Facts, value: Value) -> str:
        if value == "with_loss" and facts.profile is not None:
            share = format_percent(facts.profile.share(Phase.LOSS), digits=1)
            return f"The compiler fuses the model's operations with those of the loss, which takes {share} of the step."
        if value == "regional" and facts.workload.repeated_blocks:
            blocks = " and ".join(f"{name} {count} times" for name, count in facts.workload.repeated_blocks)
            return f"The model repeats {blocks}; compiling one of a kind starts sooner than the whole model."
        return super().why(facts, value)
