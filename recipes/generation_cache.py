"""Static cache for text generation

What it does
------------
Has `generate` of a Hugging Face model keep keys and values in tensors of their final size (`static`), and compile the
forward pass of one token over them (`static_compiled`: on a GPU with CUDA graphs).

Why it helps
------------
Each new token runs the whole model once on one position: hundreds of small kernels whose launches take longer than
their work. A cache that grows has another shape at each token, so that nothing can be compiled or captured once.

When it does not
----------------
With large batches or long prompts the work outweighs the launches. A static cache alone computes attention over all
of its positions, those that are still empty too, and is often slower. Compiling takes from ten seconds to minutes, and
again for each other length of the cache.

Numerics
--------
close: products of other shapes and fused kernels round differently. Greedy outputs are compared token by token; where
two tokens are nearly as probable, rounding picks the other, and all that follows may differ.

References
----------
Hugging Face documentation, Optimizing inference, static kv-cache and torch.compile; Caching. PyTorch blog, Accelerating
Generative AI with PyTorch II: GPT, Fast, 2023.
"""

from advisor.recipe import INFERENCE, Recipe, Stage
from advisor.records import Bottleneck, Facts, Proposal, Skip


class GenerationCache(Recipe):
    key = "generation.cache"
    values = ("dynamic", "static", "static_compiled")
    modes = INFERENCE
    attacks = frozenset({Bottleneck.LAUNCH})
    stage = Stage.MODEL
    calls = "generation.choose_cache(model, value)"
    expensive = True
    # Expected speed-up: 52 to 81 tokens/s of gemma-2b on a GPU, compiled (Hugging Face's documentation).
    gains = {"static": 1.0, "static_compiled": 1.5}

    def candidates(self, facts: Facts) -> Proposal:
        if facts.workload.generated_tokens is None:
            return Skip("the step generates no text; `hf:NAME -- generate=64` measures one that does")
        return ["static_compiled", "static"]
