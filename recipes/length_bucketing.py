"""Batches of like lengths

What it does: Forms batches of samples with similar lengths. The samples of fifty batches are sorted by length and cut
into batches, which are then shuffled. Within a batch, neighbours go to different GPUs.

Why it helps: All GPUs wait for the one with the longest samples. Similar lengths take equally long, with less padding.

When it does not: If all samples have one length, there is nothing to group. Batches are less random than before.

Numerics: changed: the samples come in another order.

References: Hugging Face, Trainer: group_by_length. Zeng et al., Boosting the Unpadded BERT Model, 2022.
"""

from advisor.recipe import NO_LOADER, Facts, ParallelRecipe, Proposal, Skip


class LengthBucketing(ParallelRecipe):
    key = "parallel.length_bucketing"
    strategies = frozenset({"ddp", "fully_shard"})
    gain = 1.1
    codes = {
        True: """\
# with lengths[i], the length of sample i
order = sorted(range(len(lengths)), key=lengths.__getitem__)
batches = [order[start : start + loader.batch_size] for start in range(0, len(order), loader.batch_size)]
batches = [batches[place] for place in torch.randperm(len(batches)).tolist()]
"""
    }

    def candidates(self, facts: Facts) -> Proposal:
        if facts.workload.loader is None:
            return Skip(NO_LOADER)
        if not facts.workload.varying_shapes:
            return Skip("the first batches are of one shape, so no GPU waits for longer samples")
        return [True]
