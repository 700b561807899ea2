"""Models of Hugging Face's from their configs: BERT-base, a small Llama, T5-small."""

import torch
from torch.nn import functional
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)


def adamw(lr, **options):
    return lambda parameters: torch.optim.AdamW(parameters, lr=lr, **options)


BERT = BertConfig(num_labels=4)  # BERT-base


def bert_inputs(batch):
    length = 128
    return {
        "input_ids": torch.randint(BERT.vocab_size, (batch, length)),
        "attention_mask": torch.ones(batch, length, dtype=torch.long),
    }


def bert():
    """A classifier on dicts whose labels give the model its own loss."""
    batch = {**bert_inputs(32), "labels": torch.randint(BERT.num_labels, (32,))}
    return {"model": BertForSequenceClassification(BERT), "data": batch, "optimizer": adamw(5e-5)}


def bert_serve():
    """The same classifier as it answers."""
    return {"model": BertForSequenceClassification(BERT).eval(), "data": bert_inputs, "mode": "infer"}


def next_token_loss(model, batch):
    logits = model(input_ids=batch["input_ids"], use_cache=False).logits
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), batch["input_ids"][:, 1:].flatten())


def llama():
    """A small decoder of the Llama family with a loss written over model and batch."""
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 8}
    config = LlamaConfig(vocab_size=32000, max_position_embeddings=512, **sizes)
    batch = {"input_ids": torch.randint(config.vocab_size, (8, 512))}
    return LlamaForCausalLM(config), batch, next_token_loss, adamw(3e-4, betas=(0.9, 0.95), weight_decay=0.1)


def t5():
    """T5-small: an encoder and a decoder, which returns its own loss."""
    config = T5Config(decoder_start_token_id=0)
    batch, length, target_length = 16, 256, 64
    data = {
        "input_ids": torch.randint(1, config.vocab_size, (batch, length)),
        "attention_mask": torch.ones(batch, length, dtype=torch.long),
        "labels": torch.randint(1, config.vocab_size, (batch, target_length)),
    }
    return {"model": T5ForConditionalGeneration(config), "data": data, "optimizer": adamw(1e-4)}
