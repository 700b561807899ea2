"""A small decoder of Hugging Face's Llama family, trained by AdamW with a loss written over model and batch."""

import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

WIDTH, HEADS, LAYERS, LENGTH, VOCABULARY, BATCH = 512, 8, 8, 512, 32000, 8


def next_token_loss(model, batch):
    logits = model(input_ids=batch["input_ids"], use_cache=False).logits
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), batch["input_ids"][:, 1:].flatten())


def build():
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=LENGTH,
    )
    batch = {"input_ids": torch.randint(VOCABULARY, (BATCH, LENGTH))}
    return (
        LlamaForCausalLM(config),
        batch,
        next_token_loss,
        lambda parameters: torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1),
    )
