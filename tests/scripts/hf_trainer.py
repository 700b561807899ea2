"""A Hugging Face Trainer on a model from a configuration."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

config = BertConfig(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50, num_labels=2
)
samples = [{"input_ids": torch.randint(50, (6,)), "labels": torch.tensor(i % 2)} for i in range(32)]
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, num_train_epochs=50, report_to=[], use_cpu=True
)
Trainer(BertForSequenceClassification(config), arguments, train_dataset=samples).train()
