"""Batches padded to few lengths

What it does: Pads each batch of sequences to the next multiple of so many positions, in the loader's collate function.
Token ids, masks and labels are padded with the values that pad them already. Each length is compiled and captured.

Why it helps: Batches that are as long as their longest sample have dozens of lengths. The compiler then makes slow code
for all lengths, or code for each, and a CUDA graph fits one length. More padding leaves about four lengths.

When it does not: A model that does not mask its padding gives other results: this is checked first, but not in a step
that you wrote. The padding values are learnt from samples across the dataset, which are read by index. Not padded are:
batches with another tensor of that length (positions), masks of pairs of positions, and batches with the length as
first dimension. The first batch of each length compiles.

Numerics: close: masked positions add nothing, but longer sums are rounded in another order.

References: PyTorch documentation, torch.compile, Dynamic shapes. Hugging Face, DataCollatorWithPadding.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from advisor.errors import RefusedError
from advisor.recipe import CUDA, Components, Expression, LoaderRecipe, WholeNumbers
from advisor.records import Bottleneck, Facts, LoaderFacts, Phase, Proposal, Skip, Value

# With the usual multiple: about how many lengths there are up to the longest. Each is compiled and captured separately.
_LENGTHS = 4


class PadBatches(LoaderRecipe):
    key = "data.pad_to_multiple"
    values = WholeNumbers(1, such_as=(1, 64))
    devices = CUDA
    attacks = frozenset({Bottleneck.LAUNCH, Bottleneck.MEMORY})
    phases = frozenset({Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER})
    keeps_code = False  # the code is compiled for other shapes
    module = "lengths"
    gain = 1.3  # tests/gpu/RESULTS.md: 2.5x in the stack of a classifier of texts

    def values_for(self, loader: LoaderFacts, facts: Facts) -> Proposal:
        if loader.iterable_dataset:
            return Skip("an iterable dataset does not show its samples before they are trained on")
        if not facts.workload.varying_shapes:
            return Skip("every batch that was looked at has the same shapes")
        if not loader.longest:
            return Skip("the first batches do not show the padding values of all tensors")
        if loader.padding_problem:
            return Skip(loader.padding_problem)
        return sorted({_usual(loader), *(value for value in (32, 64, 128) if value < loader.longest)})

    def suits(self, facts: Facts, value: Value) -> bool:
        return facts.workload.loader is not None and value == _usual(facts.workload.loader)

    def options(self, value: Value) -> Mapping[str, Any]:
        padded = Expression(f"padding(loader, {value})")
        return {"collate_fn": padded} if value != self.default else {}

    def apply(self, workload: Components, value: Value) -> None:
        unpadded = workload.data
        super().apply(workload, value)
        if workload.data is unpadded:
            return
        if not workload.data.collate_fn.longest:
            workload.data = unpadded
            raise RefusedError("samples from across the dataset do not show their padding values")
        workload.plan = replace(workload.plan, few_shapes=True)


def _usual(loader: LoaderFacts) -> int:
    """The power of two that leaves about four lengths up to the longest."""
    return int(2 ** max(0, (loader.longest - 1).bit_length() - _LENGTHS.bit_length() + 1))
