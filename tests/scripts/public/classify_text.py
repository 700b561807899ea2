"""As the example of Hugging Face without its Trainer: batches are mappings, and the model computes the loss."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.Embedding(50, 12)
        self.head = nn.Linear(12, 3)

    def forward(self, input_ids, attention_mask=None, labels=None):
        mask = attention_mask.unsqueeze(-1)
        logits = self.head((self.embeddings(input_ids) * mask).sum(1) / mask.sum(1))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SimpleNamespace(loss=loss, logits=logits)


def collate(samples):
    ids = torch.stack([sample["input_ids"] for sample in samples])
    labels = torch.tensor([sample["labels"] for sample in samples])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def main():
    torch.manual_seed(0)
    device = torch.device("cpu")
    dataset = [{"input_ids": torch.randint(50, (9,)), "labels": i % 3} for i in range(40)]
    train_dataloader = DataLoader(dataset, shuffle=True, collate_fn=collate, batch_size=8)
    model = Classifier()
    no_decay = ["bias"]
    grouped = [
        {"params": [p for n, p in model.named_parameters() if n not in no_decay], "weight_decay": 0.01},
    ]
    optimizer = torch.optim.AdamW(grouped, lr=2e-2)
    model.to(device)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for epoch in range(2):
        model.train()
        for step, batch in enumerate(train_dataloader):
            batch = {k: v.to(device) for k, v in batch.items()}
            outputs = model(**batch)
            loss = outputs.loss
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            print("loss", loss.item())


if __name__ == "__main__":
    main()
