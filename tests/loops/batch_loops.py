"""Training loops by what their batches are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from loops.networks import (
    BATCH,
    CLASSES,
    EPOCHS,
    FEATURES,
    VOCABULARY,
    Recurrent,
    WithOwnLoss,
    features,
    generator,
    loader,
    mlp,
)
from loops.register import training


def trained(run, model, batches, loss, *, lr=0.01, epochs=EPOCHS):
    """Train with AdamW and note every loss."""
    model = model.to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model, optimizer, batches = run.prepare(model, optimizer, batches)
    step = run.train_step(model, optimizer, loss)
    for _ in range(epochs):
        for batch in batches:
            run.note("loss", step(batch))
    return {"model": model, "optimizer": optimizer}


@training("step", "only_steps", "loader", "workers")
def smaller_last_batch(run):
    """43 samples in batches of 8: the last batch has 3."""
    return trained(run, mlp(), loader(features(43)), nn.CrossEntropyLoss(), epochs=8)


class Streamed(IterableDataset):
    """A stream that is divided among workers."""

    def __iter__(self):
        worker = get_worker_info()
        first, every = (0, 1) if worker is None else (worker.id, worker.num_workers)
        inputs, labels = features().tensors
        for place in range(first, len(labels), every):
            yield inputs[place], labels[place]


@training("step", "only_steps", "loader", "workers")
def streaming(run):
    return trained(run, mlp(), DataLoader(Streamed(), batch_size=BATCH), nn.CrossEntropyLoss())


class Endless(IterableDataset):
    def __iter__(self):
        inputs, labels = features().tensors
        place = 0
        while True:
            yield inputs[place % len(labels)], labels[place % len(labels)]
            place += 1


@training("step")
def endless(run):
    """An endless stream, taken from by ``next``; the dataset cannot be divided among workers."""
    model = mlp().to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, batches = run.prepare(model, optimizer, DataLoader(Endless(), batch_size=BATCH))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    stream = iter(batches)
    for _ in range(50):
        run.note("loss", step(next(stream)))
    return {"model": model, "optimizer": optimizer}


class DoublingLoader(DataLoader):
    """A loader whose iteration does work of its own."""

    def __iter__(self):
        for inputs, labels in super().__iter__():
            yield 2 * inputs + 0.5, labels


@training("step", "loader", "workers")
def loader_subclass(run):
    return trained(run, mlp(), DoublingLoader(features(), batch_size=BATCH, shuffle=True), nn.CrossEntropyLoss())


class Sentences(Dataset):
    """Sequences of different lengths as dicts."""

    def __init__(self) -> None:
        lengths = torch.randint(3, 9, (40,), generator=generator())
        self.ids = [torch.randint(VOCABULARY, (int(n),), generator=generator(int(n))) for n in lengths]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, place: int):
        return {"input_ids": self.ids[place], "labels": int(self.ids[place].sum()) % CLASSES}


def padded(samples):
    ids = nn.utils.rnn.pad_sequence([sample["input_ids"] for sample in samples], batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones(len(sample["input_ids"])) for sample in samples], batch_first=True)
    labels = torch.tensor([sample["labels"] for sample in samples])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@training("step", "only_steps", "loader", "workers")
def hugging_face_like(run):
    """Dict batches padded to the longest; the model computes its own loss."""
    return trained(run, WithOwnLoss(), loader(Sentences(), collate_fn=padded), None)


@training("step", "loader")
def dict_outputs(run):
    """Dict batches, a loss over the output's fields."""

    def loss(output, labels):
        return functional.cross_entropy(output["logits"], labels, label_smoothing=0.1)

    return trained(run, WithOwnLoss(), loader(Sentences(), collate_fn=padded), loss)


@training("loader")
def hugging_face_own(run):
    """``model(**batch).loss`` in the script's own loop."""
    model = WithOwnLoss().to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, batches = run.prepare(model, optimizer, loader(Sentences(), collate_fn=padded))
    model.train()
    for _ in range(EPOCHS):
        for batch in batches:
            outputs = model(**{name: value.to(run.device) for name, value in batch.items()})
            outputs.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.note("loss", outputs.loss)
    return {"model": model, "optimizer": optimizer}


class Pair(NamedTuple):
    sequences: PackedSequence
    labels: torch.Tensor


def packed(samples):
    samples = sorted(samples, key=lambda sample: -len(sample["input_ids"]))
    sequences = [functional.one_hot(sample["input_ids"] % FEATURES, FEATURES).float() for sample in samples]
    return Pair(pack_sequence(sequences), torch.tensor([sample["labels"] for sample in samples]))


@training("step", "only_steps", "loader", "workers")
def packed_sequences(run):
    """Packed sequences in a named tuple."""

    def loss(model, batch):
        return functional.cross_entropy(model(batch.sequences), batch.labels)

    return trained(run, Recurrent(), loader(Sentences(), collate_fn=packed), loss)


@dataclass
class Scene:
    """A batch as a dataclass: tensors, a number and a text, and a field that is computed."""

    inputs: torch.Tensor
    labels: torch.Tensor
    scale: float
    name: str
    extras: dict[str, Any] = field(default_factory=dict)
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = len(self.labels)


class Scenes(Dataset):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, place: int):
        inputs, labels = (tensor[place * BATCH : (place + 1) * BATCH] for tensor in features().tensors)
        return Scene(inputs, labels, 1.0 + place % 2, f"scene {place}", {"shift": torch.tensor(0.1 * place)})


@training("step", "loader", "workers")
def dataclass_batches(run):
    """The number and the text of a batch decide what the loss is."""

    def loss(model, batch):
        logits = model(batch.inputs * batch.scale + batch.extras["shift"])
        weight = 2.0 if batch.name.endswith("3") else 1.0
        return weight * functional.cross_entropy(logits, batch.labels, reduction="sum") / batch.count

    return trained(run, mlp(), DataLoader(Scenes(), batch_size=None, shuffle=True), loss)


@training("step", "loader")
def values_in_batches(run):
    """A dict batch with a number and a flag that change from step to step."""

    def with_values(samples):
        inputs, labels = torch.utils.data.default_collate(samples)
        count = int(labels.sum())
        return {"inputs": inputs, "labels": labels, "temperature": 1.0 + count % 3, "flip": count % 2 == 0}

    def loss(model, batch):
        inputs = -batch["inputs"] if batch["flip"] else batch["inputs"]
        return functional.cross_entropy(model(inputs) / batch["temperature"], batch["labels"])

    return trained(run, mlp(), loader(features(), collate_fn=with_values), loss)


@training("step", "only_steps", "loader", "workers")
def graphs(run):
    """PyTorch Geometric: a batch is an object, its sizes change."""
    pytest.importorskip("torch_geometric")
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader as GraphLoader
    from torch_geometric.nn import GCNConv, global_mean_pool

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = GCNConv(FEATURES, 12), GCNConv(12, 12)
            self.head = nn.Linear(12, CLASSES)

        def forward(self, data):
            hidden = torch.tanh(self.first(data.x, data.edge_index))
            hidden = torch.tanh(self.second(hidden, data.edge_index))
            return self.head(global_mean_pool(hidden, data.batch))

    def graph(seed):
        random, nodes = generator(seed), 4 + seed % 3
        x = torch.randn(nodes, FEATURES, generator=random)
        edges = torch.randint(nodes, (2, 3 * nodes), generator=random)
        return Data(x=x, edge_index=edges, y=torch.tensor([seed % CLASSES]))

    def loss(model, batch):
        return functional.cross_entropy(model(batch), batch.y)

    batches = GraphLoader([graph(seed) for seed in range(40)], batch_size=BATCH, shuffle=True)
    return trained(run, Net(), batches, loss)


class Worded(nn.Module):
    """A convolution over text: the length of the batches varies."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 12)
        self.convolution = nn.Conv1d(12, 12, 3, padding=1)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, ids):
        hidden = torch.tanh(self.convolution(self.embedding(ids).transpose(1, 2)))
        return self.head(hidden.mean(2))


@training("step")
def changing_shapes(run):
    """Batches of another size and length in almost every step."""
    model = Worded().to(run.device)
    model, optimizer = run.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for iteration in range(50):
        size, length = 4 + iteration % 3, 5 + iteration % 4
        ids = torch.randint(VOCABULARY, (size, length), generator=generator(iteration))
        run.note("loss", step((ids, ids.sum(1) % CLASSES)))
    return {"model": model, "optimizer": optimizer}
