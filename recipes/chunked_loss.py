"""Chunked loss of a large vocabulary

What it does: A last linear layer with 16,384 outputs or more no longer computes all scores at once. `cross_entropy`
computes them, with their gradients, for an eighth of the rows at a time. Hugging Face's language models call the loss
themselves. In other models the loss must get the model's output itself, a slice of it, `view(-1, vocabulary)` or
`transpose(1, 2)` of it.

Why it helps: For 2,048 tokens and 32,000 words the scores take 250 MiB, and their logarithms and gradients as much
again: often most of a step's memory. The saved memory allows a larger batch.

When it does not: If the scores are used in another way (scaling, label smoothing, class weights, a metric), all are
computed at once. In training the output is an object; `output.whole()` makes it a tensor, and code that checks for the
class Tensor fails. The layer's gradient needs a further float32 copy of its weight. It saves memory, not time.

Numerics: close: the same gradients, summed in eight parts; a loss of half-precision scores is computed in float32.

References: Liger Kernel, fused linear cross-entropy. PyTorch documentation, torch.nn.functional.linear_cross_entropy
(not in all versions; slower under autocast on a CPU).
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
