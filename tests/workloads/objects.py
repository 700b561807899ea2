"""Objects of other libraries as a person would have them in a file."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        return self.head(self.body(images))


class Pair(nn.Module):
    """Two inputs of one kind."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, image1, image2):
        return self.net(image1) - self.net(image2)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens):
        return self.head(self.layer(self.embedding(tokens)).mean(1))


net, pair, words = Net(), Pair(), Words()


def graph():
    from torch_geometric.nn import GCN

    return GCN(16, 32, 2, 7)


def tiny_bert():
    import transformers

    return transformers.BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=99
    )


def bert_classifier():
    import transformers

    return transformers.BertForSequenceClassification(tiny_bert())


def trainer(directory="/tmp"):
    import transformers

    samples = [{"input_ids": torch.arange(5, 13), "labels": torch.tensor(i % 2)} for i in range(16)]
    arguments = transformers.TrainingArguments(
        output_dir=directory,
        per_device_train_batch_size=4,
        report_to="none",
        use_cpu=True,
        bf16=True,
        torch_compile=True,
        torch_compile_mode="reduce-overhead",
    )
    return transformers.Trainer(bert_classifier(), arguments, train_dataset=samples)


def lora():
    import peft
    import transformers

    config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=99)
    return peft.get_peft_model(transformers.GPT2LMHeadModel(config), peft.LoraConfig(target_modules=["c_attn"]))


def yolo():
    from ultralytics import YOLO

    return YOLO("yolov8n.yaml")
