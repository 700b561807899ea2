"""No cache of keys and values in training

What it does: Sets `use_cache` to false in the configuration of a Hugging Face decoder. By default each call returns the
keys and values of all layers for the next call, which training never reads. `generate` keeps them.

Why it helps: No unused keys and values are stored. This matters most for a compiler: the cache has one more entry at
each layer, so layers that are otherwise equal are compiled one by one.

When it does not: A step that is not compiled gains little: the tensors exist anyway, for the backward pass. A loop that
reads `past_key_values` in training (over segments of a long text) needs the cache. Hugging Face's Trainer switches it
off by itself. `save_pretrained` writes the change; `generate` still keeps its cache after loading.

Numerics: exact: the same products in the same order.

References: Hugging Face documentation, Caching; TrainingArguments, use_cache.
"""

from advisor.recipe import TRAINING, Bottleneck, Facts, Proposal, Recipe, Skip


class TrainingCache(Recipe):
    key = "model.use_cache"
    default = True
    modes = TRAINING
    attacks = frozenset({Bottleneck.LAUNCH, Bottleneck.MEMORY})
    gain = 1.01
    usual = frozenset({False})
    calls = (("training_cache", "keep_no_cache(model)"),)

    def candidates(self, facts: Facts) -> Proposal:
        if self.key not in facts.workload.current:
            return Skip("no part of the model is a Hugging Face decoder, which keeps keys and values in training")
        return [False] if facts.current(self.key, True) else Skip("the model keeps no keys and values already")
