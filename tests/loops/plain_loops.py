"""Training loops of the usual shapes."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from loops.networks import BATCH, EPOCHS, LENGTH, SAMPLES, ConvNet, TinyGPT, features, images, loader, mlp, tokens
from loops.register import training


@training("step", "loader", "workers", "convolution", "activation", "biased_norm")
def plain(run):
    """The loop of PyTorch's tutorials."""
    model = ConvNet(common=True).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    model, optimizer, batches = run.prepare(model, optimizer, loader(images()))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
    run.note("keys", ", ".join(model.state_dict()))
    model.eval()
    with torch.no_grad():
        run.note("output", model(images().tensors[0].to(run.device)))
    return {"model": model, "optimizer": optimizer}


@training("loader", "workers", "convolution")
def own_step(run):
    """As written in most scripts; only ``prepare`` was added."""
    model = ConvNet().to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, batches = run.prepare(model, optimizer, loader(images()))
    criterion = nn.CrossEntropyLoss()
    model.train()
    for _ in range(EPOCHS):
        for inputs, labels in batches:
            inputs, labels = inputs.to(run.device), labels.to(run.device)  # noqa: PLW2901
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            run.note("loss", loss)
    return {"model": model, "optimizer": optimizer}


@training("step", "only_steps")
def one_batch(run):
    """Regression on all of the data at once, without a loader."""
    inputs, labels = (tensor.to(run.device) for tensor in features().tensors)
    model = mlp().to(run.device)
    model, optimizer = run.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
    step = run.train_step(model, optimizer, nn.functional.cross_entropy)
    for _ in range(50):
        run.note("loss", step((inputs, labels)))
    return {"model": model, "optimizer": optimizer}


def cosine_with_warmup(iteration: int, warmup: int = 5, total: int = 50, top: float = 0.01) -> float:
    if iteration < warmup:
        return top * (iteration + 1) / warmup
    return 0.1 * top + 0.45 * top * (1 + math.cos(math.pi * (iteration - warmup) / (total - warmup)))


def token_batch(iteration: int, device: torch.device):
    rows = torch.arange(iteration * BATCH, (iteration + 1) * BATCH) % SAMPLES
    ids = tokens()[rows].to(device)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


@training("attention", "blocks")
def nanogpt(run):
    """Learning rate assigned to each group, gradients of several micro-batches, clipping."""
    model = TinyGPT().to(run.device)
    model, optimizer = run.prepare(model, model.configure_optimizers(0.01))
    for iteration in range(50):
        for group in optimizer.param_groups:
            group["lr"] = cosine_with_warmup(iteration)
        for part in range(2):
            _, loss = model(*token_batch(2 * iteration + part, run.device))
            (loss / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.note("loss", loss)
        run.note_rates(optimizer)
    return {"model": model, "optimizer": optimizer}


@training("step", "only_steps", "attention", "blocks", "clip")
def nanogpt_step(run):
    """The same with the step of ``train_step``: the learning rate is assigned before each call."""
    model = TinyGPT().to(run.device)
    model, optimizer = run.prepare(model, model.configure_optimizers(0.01))

    def loss(model, batch):
        return model(*batch)[1]

    step = run.train_step(model, optimizer, loss, clip_grad=1.0)
    for iteration in range(50):
        for group in optimizer.param_groups:
            group["lr"] = cosine_with_warmup(iteration)
        run.note("loss", step(token_batch(iteration, run.device)))
        run.note_rates(optimizer)
    assert model.tokens.weight is model.head.weight
    return {"model": model, "optimizer": optimizer}


class Trainer:
    """A trainer in the manner of Keras: ``fit`` with callbacks, ``evaluate``."""

    def __init__(self, run, model, loss, lr):
        self.run, self.history, self.stopped = run, [], False
        self.model, self.optimizer = run.prepare(model, torch.optim.RMSprop(model.parameters(), lr=lr))
        self.train_on_batch = run.train_step(self.model, self.optimizer, loss)
        self.loss = loss

    def fit(self, batches, held_out, epochs, callbacks):
        for epoch in range(epochs):
            losses = [self.train_on_batch(batch) for batch in batches]
            logs = {"loss": torch.stack(losses).mean().item(), "val_loss": self.evaluate(held_out)}
            self.history.append(logs)
            for callback in callbacks:
                callback(self, epoch, logs)
            if self.stopped:
                break

    def evaluate(self, batches):
        self.model.eval()
        with torch.no_grad():
            losses = [self.loss(self.model(x.to(self.run.device)), y.to(self.run.device)) for x, y in batches]
        self.model.train()
        return torch.stack(losses).mean().item()


@training("step", "any_optimizer", "loader")
def keras_like(run):
    """A Trainer class, a callback that halves the learning rate and one that stops."""

    def halve(trainer, epoch, logs):
        run.note("val loss", logs["val_loss"])
        run.note_rates(trainer.optimizer)
        if epoch in (3, 6):
            for group in trainer.optimizer.param_groups:
                group["lr"] *= 0.5

    def stop(trainer, epoch, logs):
        trainer.stopped = epoch == 8

    trainer = Trainer(run, mlp().to(run.device), nn.CrossEntropyLoss(), lr=0.003)
    trainer.fit(loader(features()), loader(features(16), shuffle=False), EPOCHS, [halve, stop])
    run.note("epochs", len(trainer.history))
    return {"model": trainer.model, "optimizer": trainer.optimizer}


@training("loader")
def accumulation(run):
    """Gradients of three batches in one update, and what is left over at an epoch's end."""
    model = mlp().to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    model, optimizer, batches = run.prepare(model, optimizer, loader(features()))
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        for place, (inputs, labels) in enumerate(batches, 1):
            loss = functional.cross_entropy(model(inputs.to(run.device)), labels.to(run.device))
            (loss / 3).backward()
            run.note("loss", loss)
            if place % 3 == 0 or place == len(batches):
                optimizer.step()
                optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


@training("step", "only_steps", "loader", "workers", "random")
def dropout(run):
    """Random numbers are drawn in each step, beside the loader's shuffling."""
    model = nn.Sequential(mlp(outputs=16), nn.Dropout(0.2), nn.Linear(16, 4)).to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    model, optimizer, batches = run.prepare(model, optimizer, loader(features()))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss(label_smoothing=0.1))
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
    return {"model": model, "optimizer": optimizer}


@training("step", "loader")
def best_weights_kept(run):
    """Early stopping: the best weights are copied, and put back in the end."""
    model = mlp().to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer, batches = run.prepare(model, optimizer, loader(features()))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for epoch in range(EPOCHS):
        for batch in batches:
            step(batch)
        if epoch == 5:
            best = {name: value.clone() for name, value in model.state_dict().items()}
        if epoch == 8:
            model.load_state_dict(best)
            for _ in range(2):  # training goes on from them
                run.note("loss", step(next(iter(batches))))
    return {"model": model, "optimizer": optimizer}


@training("step", "loader")
def k_fold(run):
    """Model, optimizer and step made anew for every fold."""
    data, scores = features(), {}
    for fold in range(4):
        torch.manual_seed(fold)
        held_out = range(fold * 10, (fold + 1) * 10)
        kept = [place for place in range(SAMPLES) if place not in held_out]
        model = mlp().to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        batches = loader(torch.utils.data.Subset(data, kept), batch_size=10)
        model, optimizer, batches = run.prepare(model, optimizer, batches)
        step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
        for _ in range(4):
            for batch in batches:
                run.note("loss", step(batch))
        model.eval()
        with torch.no_grad():
            run.note("held out", model(data.tensors[0][list(held_out)].to(run.device)))
        scores[f"model {fold}"] = model
    return scores


@training("step", "loader")
def monitored(run):
    """Gradients read after the step, hooks on the model and on the optimizer."""
    model = mlp().to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    calls = {"forward": 0, "update": 0}

    def counted(name):
        def hook(*_):
            calls[name] += 1

        return hook

    model[0].register_forward_hook(counted("forward"))
    optimizer.register_step_post_hook(counted("update"))
    model, optimizer, batches = run.prepare(model, optimizer, loader(features()))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
            run.note("gradient norm", torch.stack([p.grad.norm() for p in model.parameters()]).norm())
            run.note("forward calls", calls["forward"])
            run.note("updates", calls["update"])
    return {"model": model, "optimizer": optimizer}


assert tokens().shape[1] == LENGTH + 1
