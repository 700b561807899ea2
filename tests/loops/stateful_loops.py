"""Training loops whose models keep something between steps: states, codebooks, switches, losses in attributes."""

import random

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from loops.networks import BATCH, CLASSES, EPOCHS, FEATURES, features, generator, loader, mlp
from loops.register import training


class Carrying(nn.Module):
    """A recurrent model that goes on from the state in which the last batch left it."""

    def __init__(self):
        super().__init__()
        self.cell, self.head, self.hidden = nn.GRUCell(FEATURES, 8), nn.Linear(8, CLASSES), None

    def forward(self, inputs):
        self.hidden = self.cell(inputs, None if self.hidden is None else self.hidden.detach())
        return self.head(self.hidden)


@training("step", "loader", "adam")
def carried_state(run):
    """Truncated backpropagation through time: the hidden state is an attribute, and None at an epoch's start."""
    model = Carrying().to(run.device)
    model, optimizer, batches = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01), loader(features()))
    step = run.train_step(model, optimizer, functional.cross_entropy)
    for _ in range(EPOCHS):
        model.hidden = None
        for batch in batches:
            run.note("loss", step(batch))
    return {"model": model, "optimizer": optimizer}


class Quantizing(nn.Module):
    """An autoencoder in the manner of VQ-VAE: averages move its codes, and its second loss is an attribute."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = mlp(outputs=4), mlp(inputs=4, outputs=FEATURES)
        self.register_buffer("codes", torch.randn(6, 4, generator=generator()))
        self.decay, self.commitment = 0.9, None

    def forward(self, inputs):
        encoded = self.encoder(inputs)
        distances = (encoded.unsqueeze(1) - self.codes).square().sum(2)
        shares = torch.softmax(-distances.detach(), 1)
        if self.training:
            means = shares.T @ encoded.detach() / shares.sum(0).unsqueeze(1)
            self.codes.lerp_(means, 1 - self.decay)
        chosen = shares @ self.codes.clone()
        self.commitment = functional.mse_loss(encoded, chosen)
        return self.decoder(encoded + (chosen - encoded).detach())


@training("step", "loader", "adam")
def codebook(run):
    """A buffer that the forward pass writes, a number for it that changes, and a loss that reads an attribute."""
    model = Quantizing().to(run.device)
    model, optimizer, batches = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01), loader(features()))

    def loss(model, batch):
        return functional.mse_loss(model(batch[0]), batch[0]) + 0.25 * model.commitment

    step = run.train_step(model, optimizer, loss)
    for epoch in range(EPOCHS):
        model.decay = 0.9 if epoch < EPOCHS // 2 else 0.5
        for batch in batches:
            run.note("loss", step(batch))
    return {"model": model, "optimizer": optimizer}


class Experts(nn.Module):
    """A mixture of experts that puts the loss of its balance into a list."""

    def __init__(self):
        super().__init__()
        self.gate, self.head = nn.Linear(FEATURES, 3), nn.Linear(8, CLASSES)
        self.experts = nn.ModuleList(nn.Linear(FEATURES, 8) for _ in range(3))
        self.losses = []

    def forward(self, inputs):
        shares = torch.softmax(self.gate(inputs), 1)
        self.losses.append(3 * shares.mean(0).square().sum())
        return self.head(sum(shares[:, i, None] * expert(inputs) for i, expert in enumerate(self.experts)))


@training("step", "loader", "adam")
def experts(run):
    """The losses in a list of the model's are added to the loss, which empties the list."""
    model = Experts().to(run.device)
    model, optimizer, batches = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01), loader(features()))

    def loss(output, target):
        beside = sum(model.losses)
        model.losses.clear()
        return functional.cross_entropy(output, target) + 0.1 * beside

    step = run.train_step(model, optimizer, loss)
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
    return {"model": model, "optimizer": optimizer}


class Skipping(nn.Module):
    """Stochastic depth: a generator's method decides on the host which layers are left out."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 16), nn.Linear(16, CLASSES)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.draw, self.share = random.Random(3).random, 0.0

    def forward(self, inputs):
        hidden = torch.tanh(self.first(inputs))
        for layer in self.layers:
            keeps = not self.training or self.draw() >= self.share
            hidden = hidden + torch.tanh(layer(hidden)) * keeps
        return self.last(hidden)


@training("step", "loader", "sgd")
def stochastic_depth(run):
    """Layers are left out at random, more of them from epoch to epoch, and those in evaluation not at all."""
    model = Skipping().to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, loader(features()))
    step = run.train_step(model, optimizer, functional.cross_entropy)
    for epoch in range(EPOCHS):
        model.share = 0.5 * epoch / EPOCHS
        for batch in batches:
            run.note("loss", step(batch))
    return {"model": model, "optimizer": optimizer}


class FakeQuantized(nn.Module):
    """Rounds to a grid whose ends it has observed; both can be switched."""

    def __init__(self):
        super().__init__()
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.ones(()))
        self.observes, self.rounds, self.bits = True, False, 8

    def forward(self, inputs):
        if self.observes:
            self.low.copy_(torch.minimum(self.low, inputs.detach().min()))
            self.high.copy_(torch.maximum(self.high, inputs.detach().max()))
        if not self.rounds:
            return inputs
        width = (self.high - self.low) / (2**self.bits - 1)
        return inputs + (((inputs - self.low) / width).round() * width + self.low - inputs).detach()


@training("step", "loader", "sgd")
def quantization_aware(run):
    """Observers are switched off, and rounding on, when epochs have passed; a loss of PyTorch's gets other options."""
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), FakeQuantized(), nn.Linear(16, CLASSES)).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, loader(features()))
    criterion = nn.CrossEntropyLoss()
    step = run.train_step(model, optimizer, criterion)
    for epoch in range(EPOCHS):
        quantizer = model[2]
        quantizer.rounds, quantizer.observes, quantizer.bits = epoch >= 3, epoch < 5, 8 if epoch < 7 else 4
        criterion.ignore_index = -100 if epoch < 5 else 0
        for batch in batches:
            run.note("loss", step(batch))
    return {"model": model, "optimizer": optimizer}


@training("step", "adam")
def adapted_in_the_loss(run):
    """Model-agnostic meta-learning: the loss makes steps of its own, whose rate and number change."""
    model = mlp().to(run.device)
    model, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    inner = {"rate": 0.1, "steps": 2}

    def loss(model, batch):
        (inputs, others), (labels, other_labels) = (part.chunk(2) for part in batch)
        weights = dict(model.named_parameters())
        for _ in range(inner["steps"]):
            value = functional.cross_entropy(functional_call(model, weights, (inputs,)), labels)
            slopes = torch.autograd.grad(value, list(weights.values()), create_graph=True)
            weights = {
                name: weight - inner["rate"] * slope
                for (name, weight), slope in zip(weights.items(), slopes, strict=True)
            }
        return functional.cross_entropy(functional_call(model, weights, (others,)), other_labels)

    step = run.train_step(model, optimizer, loss)
    inputs, labels = features().tensors
    for iteration in range(50):
        inner["rate"], inner["steps"] = (0.1, 2) if iteration < 20 else (0.05, 2 if iteration < 35 else 1)
        places = torch.randperm(len(inputs), generator=generator(iteration))[:BATCH]
        run.note("loss", step((inputs[places], labels[places])))
    return {"model": model, "optimizer": optimizer}
