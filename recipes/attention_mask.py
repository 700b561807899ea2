"""Empty attention masks dropped

What it does: Leaves an attention mask out of each batch in which it masks nothing: an `attention_mask` of ones, a
`padding_mask` of zeros, or one of zeros that is added to the scores. The loader's collate function looks at each batch.
A batch whose mask says something keeps it, and is compiled or captured as another form of batch.

Why it helps: Flash attention takes no mask. Eager code may look at the mask's values and drop it, as Hugging Face's
models do; a compiled or captured step cannot, and computes with a mask of all pairs of positions.

When it does not: Batches are padded, or the model makes a mask where it gets none. In a compiled or captured step those
of transformers 5.17 do; those of 5.24 only under torch.compile before PyTorch 2.14. Masks are found by their names, in
batches that are dicts. A loss that reads the mask fails without it. Without a DataLoader, leave out the mask yourself.

Numerics: close: another kernel adds up in another order.

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
    order = 1  # after pad_batches, which knows the parts of a batch by their places
    keeps_code = False  # other kernels are called

    def candidates(self, facts: Facts) -> Proposal:
        loader = facts.workload.loader
        if not facts.workload.empty_masks:
            return Skip("no batch has an attention mask that is all ones")
        if facts.workload.takes_arguments_only:
            return Skip("the Trainer makes its loader itself; drop the masks in its data_collator")
        return Skip(loader.copy_problem) if loader and loader.copy_problem else ["dropped"]

    def options(self, value: Value) -> dict[str, Any]:
        # A trial drops the masks of a batch that no loader makes.
        return {"collate_fn": Expression("dropping_masks(loader.collate_fn)")} if value == "dropped" else {}
