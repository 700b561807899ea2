"""Scope of compilation

What it does
------------
`regional` compiles the blocks that the model repeats (the layers of a transformer, the blocks of a residual network),
each in place, and leaves the rest of the model as it is. Blocks that are alike are compiled once and share the code.
`with_loss` compiles the model and the loss as one function. Alone either compiles in the mode `default`; beside
`compile.mode` in that one. The model keeps its identity and the names of its parameters.

Why it helps
------------
Compiling one layer instead of forty makes the first step come many times sooner, and most of what compilation gives
is inside the layers. A loss over many classes, such as a language model's over its vocabulary, reads and writes the
model's largest tensor several times; compiled with the last layer it does so once or twice.

When it does not
----------------
Nothing is fused across blocks or outside them, so the step can be somewhat slower than with the whole model compiled;
a long run earns the longer compilation back. Blocks of several shapes, as in the stages of a convolutional network,
are compiled once for each shape; kinds of blocks of which more than a third differ stay as they are. With few blocks
there is little to save. A loss that takes a small share of the step, or that the compiler cannot trace, gains nothing
by being compiled with the model.

Numerics
--------
close: as for torch.compile, fused kernels round at other places and draw dropout from another stream.

References
----------
PyTorch tutorials, Reducing torch.compile cold start compilation time with regional compilation. PyTorch
documentation, torch.nn.Module.compile.
"""

from advisor.errors import RefusedError
from advisor.figures.formatting import format_percent
from advisor.recipe import Components, Recipe
from advisor.records import Bottleneck, Facts, Mode, Phase, Proposal, Skip, Value
from advisor.step import compile_source

# The share is measured: of a small encoder on an H200 it was less than 0.5 % in one session and 0.9 % in another, and a
# candidate should not come and go with that.
_LEAST_SHARE = 0.001
# Of a ResNet-50's 16 blocks eight differ in shape: an H200's host had not compiled them after 37 s, the model in 33 s.
_SHAPES = (
    "{count} blocks that the model repeats ({name}) have {shapes} shapes, and each shape is compiled by itself, which "
    "takes no less time than the whole model"
)


class CompileScope(Recipe):
    key = "compile.scope"
    values = ("model", "regional", "with_loss")
    plan_field = "compile_scope"
    compiles = True
    attacks = frozenset({Bottleneck.LAUNCH, Bottleneck.MEMORY})
    partners = frozenset({"autocast", "compile"})
    usual = frozenset({"with_loss"})
    # Expected speed-up: with_loss 10.31x and regional 9.36x in one session (tests/gpu/RESULTS.md).
    gains = {"with_loss": 1.05, "regional": 0.97}

    def candidates(self, facts: Facts) -> Proposal:
        blocks, shapes = facts.workload.repeated_blocks, facts.workload.block_shapes
        count = sum(count for _, count in blocks)
        values = ["with_loss"] if _loss_counts(facts) else []
        values += ["regional"] if blocks and 3 * shapes <= count else []
        if values:
            return values
        if blocks:
            return Skip(_SHAPES.format(count=count, name=blocks[0][0], shapes=shapes))
        return Skip("the model repeats no block of layers that could be compiled by itself")

    def apply(self, workload: Components, value: Value) -> None:
        from advisor.step.blocks import repeated_blocks

        super().apply(workload, value)
        if value == "regional" and not repeated_blocks(workload.model):
            raise RefusedError(f"{type(workload.model).__name__} repeats no block that could be compiled by itself")

    def code(self, value: Value) -> str:
        return "# torch.compile takes the whole model\n" if value == "model" else compile_source(scope=str(value))

    def cost(self, value: Value) -> float:
        # On H200s' hosts about 30 s of T5-small's 50, and more than 20 of a small Whisper's 28.
        return 0.6 if value == "regional" else 1.0

    def why(self, facts: Facts, value: Value) -> str:
        if value == "with_loss" and facts.profile is not None:
            share = format_percent(facts.profile.share(Phase.LOSS), digits=1)
            return f"The compiler fuses the model's operations with those of the loss, which takes {share} of the step."
        if value != "regional" or not facts.workload.repeated_blocks:
            return super().why(facts, value)
        (name, count), *others = facts.workload.repeated_blocks
        if others:
            return (
                "The model repeats blocks of layers; compiling these by themselves starts sooner than the whole model."
            )
        return f"The model repeats {name} {count} times; compiling it by itself starts sooner than the whole model."


def _loss_counts(facts: Facts) -> bool:
    """Whether compiling the loss can pay: other settings shorten the rest of a step several times, but not the loss.

    Before the profile tells its share, it is assumed to count.
    """
    profile = facts.profile
    sees_loss = facts.workload.mode is Mode.TRAIN and not facts.workload.own_step
    return sees_loss and (profile is None or profile.share(Phase.LOSS) >= _LEAST_SHARE)
