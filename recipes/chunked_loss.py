"""Chunked loss of a large vocabulary

What it does: The last layer, a linear one with 16,384 outputs or more, leaves its scores to the loss. `cross_entropy`
computes them for an eighth of the rows at a time, with their gradients, so the scores of a batch are never all in
memory. Hugging Face's language models do so inside; else give the loss what the model returns: as it is, sliced, by
`view(-1, vocabulary)` or `transpose(1, 2)`.

Why it helps: 2,048 tokens of 32,000 words have 250 MiB of scores, and as much again of logarithms and of gradients:
often most of a step's memory. What is saved allows a larger batch.

When it does not: If anything else is done with the scores (scaling, label smoothing, class weights, a metric), all are
computed at once. In training the output is an object that becomes a tensor with `output.whole()`; code that asks for a
tensor by its class fails. The layer's gradient needs one more copy of its weight in float32. It saves memory, not time.

Numerics: close: the same gradients, summed in eight parts; a loss of half-precision scores is computed in float32.

References: Liger Kernel, fused linear cross-entropy. PyTorch documentation, torch.nn.functional.linear_cross_entropy,
which is not in all versions, and slower under autocast on a CPU.
"""

from advisor.errors import RefusedError
from advisor.recipe import TRAINING, Bottleneck, Components, Facts, Phase, Proposal, Recipe, Skip, Value

_NONE = "the model's last layer is not a linear one with 16,384 outputs or more"


class ChunkedLoss(Recipe):
    key = "loss.chunked"
    modes = TRAINING
    attacks = frozenset({Bottleneck.MEMORY})
    phases = frozenset({Phase.FORWARD, Phase.LOSS, Phase.BACKWARD})
    saves_memory = True
    imported = "from advisor.inlined.chunked_loss import chunk_loss\n\nchunk_loss(model)\n"
    calls = (("chunked_loss", "chunk_loss(model)"),)
    conflicts = (
        (True, "parallel.strategy", "fully_shard", "the loss needs the whole last layer, and fully_shard has freed it"),
        (True, "step.cuda_graph", "around_loss", "the graph ends before the loss, which computes the scores"),
    )
    here = {True: "The scores have {workload.large_head:,} columns."}
    excludes = dict.fromkeys(("precision.float8", "precision.quantize"), "other layers replace the last one")

    def candidates(self, facts: Facts) -> Proposal:
        return [True] if facts.workload.large_head else Skip(_NONE)

    def apply(self, workload: Components, value: Value) -> None:
        from advisor.inlined.chunked_loss import large_head

        if value and large_head(workload.model) is None:
            raise RefusedError(_NONE)
        super().apply(workload, value)
