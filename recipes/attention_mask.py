"""Empty attention masks dropped

What it does: Removes the attention mask from a batch if it masks nothing: an `attention_mask` of ones, a `padding_mask`
of zeros, or a mask of zeros that is added to the scores. The loader's collate function checks each batch. If the mask
hides a position, the batch keeps it; the step is compiled or captured once more for such batches.

Why it helps: Flash attention takes no mask. Eager code can read the mask's values and drop it (Hugging Face's models
do). A compiled or captured step cannot, so it computes with a mask of all pairs of positions.

When it does not: Batches are padded, or the model makes its own mask if it gets none. In a compiled or captured step
transformers 5.17 makes one; 5.24 does so only under torch.compile before PyTorch 2.14. Masks are found by name, in
batches that are dicts. A loss that reads the mask fails. Without a DataLoader, leave out the mask yourself.

Numerics: close: another kernel sums in another order.

References: PyTorch documentation, torch.nn.functional.scaled_dot_product_attention. Hugging Face, Attention masks.
"""

from typing import Any

from advisor.recipe import CUDA, Bottleneck, Expression, Facts, LoaderRecipe, Phase, Proposal, Skip, Value


class AttentionMask(LoaderRecipe):
    key = "attention.empty_masks"
    values = ("kept", "dropped")
    devices = CUDA
    attacks = frozenset({Bottleneck.COMPUTE, Bottleneck.MEMORY})
    usual = frozenset({"dropped"})
    phases = frozenset({Phase.FORWARD, Phase.BACKWARD})
    module = "masks"
    order = 1  # after pad_batches, which finds the parts of a batch by their positions
    keeps_code = False  # the compiled code calls other kernels

    def candidates(self, facts: Facts) -> Proposal:
        loader = facts.workload.loader
        if not facts.workload.empty_masks:
            return Skip("no batch has an attention mask that is all ones")
        if facts.workload.takes_arguments_only:
            return Skip("the Trainer makes its loader itself; drop the masks in its data_collator")
        return Skip(loader.copy_problem) if loader and loader.copy_problem else ["dropped"]

    def options(self, value: Value) -> dict[str, Any]:
        # Without a loader, the trial itself drops the masks.
        return {"collate_fn": Expression("dropping_masks(loader.collate_fn)")} if value == "dropped" else {}
