"""T5-small of Hugging Face's from its config: an encoder and a decoder, which returns its own loss."""

import torch
from transformers import T5Config, T5ForConditionalGeneration

WIDTH, HEADS, LAYERS, VOCABULARY, LENGTH, TARGET_LENGTH, BATCH = 512, 8, 6, 32128, 256, 64, 16


def build():
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        d_ff=4 * WIDTH,
        num_layers=LAYERS,
        num_heads=HEADS,
        decoder_start_token_id=0,
    )
    batch = {
        "input_ids": torch.randint(1, VOCABULARY, (BATCH, LENGTH)),
        "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long),
        "labels": torch.randint(1, VOCABULARY, (BATCH, TARGET_LENGTH)),
    }
    return {
        "model": T5ForConditionalGeneration(config),
        "data": batch,
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
    }
