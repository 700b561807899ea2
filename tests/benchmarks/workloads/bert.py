"""BERT-base of Hugging Face's from its config. ``build`` trains a classifier on dicts whose labels give the model its
own loss; ``serve`` runs it."""

import torch
from transformers import BertConfig, BertForSequenceClassification

WIDTH, HEADS, LAYERS, LENGTH, VOCABULARY, BATCH, CLASSES = 768, 12, 12, 128, 30522, 32, 4


def _model():
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=4 * WIDTH,
            num_labels=CLASSES,
        )
    )


def _inputs(batch):
    return {
        "input_ids": torch.randint(VOCABULARY, (batch, LENGTH)),
        "attention_mask": torch.ones(batch, LENGTH, dtype=torch.long),
    }


def build():
    batch = {**_inputs(BATCH), "labels": torch.randint(CLASSES, (BATCH,))}
    return {"model": _model(), "data": batch, "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=5e-5)}


def serve():
    return {"model": _model().eval(), "data": _inputs, "mode": "infer"}
