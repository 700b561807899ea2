"""Training loops with schedules of the learning rate."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler

from loops.networks import EPOCHS, ConvNet, features, images, loader, mlp
from loops.register import training


def scheduled(run, optimizer_of, scheduler_of, *, each="batch", model=None):
    """A loop with a scheduler that goes through ``prepare``."""
    model = (model or mlp()).to(run.device)
    optimizer = optimizer_of(model.parameters())
    scheduler = scheduler_of(optimizer)
    model, optimizer, batches, scheduler = run.prepare(model, optimizer, loader(features()), scheduler)
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
            run.note_rates(optimizer)
            if each == "batch":
                scheduler.step()
        if each == "epoch":
            scheduler.step()
    run.note("last rates", [float(rate) for rate in scheduler.get_last_lr()])
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@training("step", "adam", "loader")
def one_cycle_adam(run):
    """OneCycleLR moves Adam's betas beside the learning rate."""
    return scheduled(
        run,
        lambda parameters: torch.optim.Adam(parameters, lr=0.001),
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=50),
    )


@training("step", "loader")
def one_cycle_sgd(run):
    """OneCycleLR moves SGD's momentum beside the learning rate."""
    return scheduled(run, sgd, lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=50))


@training("step", "sgd", "loader")
def cyclic(run):
    """CyclicLR moves the momentum against the learning rate."""
    return scheduled(
        run, sgd, lambda optimizer: lr_scheduler.CyclicLR(optimizer, base_lr=0.01, max_lr=0.1, step_size_up=6)
    )


@training("step", "adam", "loader")
def warm_restarts(run):
    return scheduled(
        run,
        lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=7, T_mult=2),
    )


@training("step", "loader")
def warmup_then_cosine(run):
    """Schedulers one after the other, stepped once an epoch."""

    def both(optimizer):
        warmup = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=3)
        rest = lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS - 3)
        return lr_scheduler.SequentialLR(optimizer, [warmup, rest], milestones=[3])

    return scheduled(run, sgd, both, each="epoch")


@training("step", "loader")
def groups_with_rates(run):
    """Backbone and head with rates of their own, both scheduled by a LambdaLR."""
    model = mlp()
    model.to(run.device)

    def two_groups(_):
        groups = [{"params": model[:2].parameters(), "lr": 0.01}, {"params": model[2:].parameters()}]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.8)

    slow, fast = (lambda step: 0.95**step), (lambda step: 1 / (1 + step))
    return scheduled(run, two_groups, lambda optimizer: lr_scheduler.LambdaLR(optimizer, [slow, fast]), model=model)


@training("step", "loader")
def scheduler_made_afterwards(run):
    """The scheduler is made for the optimizer that ``prepare`` returned, after the step was made."""
    model = mlp().to(run.device)
    model, optimizer, batches = run.prepare(model, sgd(model.parameters()), loader(features()))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    scheduler = lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.5)
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
            run.note_rates(optimizer)
            scheduler.step()
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


@training("step", "loader")
def plateau(run):
    """ReduceLROnPlateau, fed with the loss of a validation set."""
    model = mlp().to(run.device)
    optimizer = sgd(model.parameters())
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=1, threshold=0.9)
    model, optimizer, scheduler, batches = run.prepare(model, optimizer, scheduler, loader(features()))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    held_out, labels = (tensor.to(run.device) for tensor in features(16).tensors)
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
        model.eval()
        with torch.no_grad():
            scheduler.step(functional.cross_entropy(model(held_out), labels))
        model.train()
        run.note_rates(optimizer)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


class AssigningScheduler:
    """A scheduler in the manner of timm and fairseq: no LRScheduler, it assigns the rates of its optimizer's groups."""

    def __init__(self, optimizer, warmup=5, total=50):
        self.optimizer, self.warmup, self.total = optimizer, warmup, total
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.bases = [group["initial_lr"] for group in optimizer.param_groups]
        self.step_update(0)

    def step_update(self, updates):
        share = min(1.0, (updates + 1) / self.warmup) * 0.5 * (1 + math.cos(math.pi * updates / self.total))
        for group, base in zip(self.optimizer.param_groups, self.bases, strict=True):
            group["lr"] = base * share

    def state_dict(self):
        return {name: value for name, value in vars(self).items() if name != "optimizer"}


@training("step", "loader", "convolution")
def assigning_scheduler(run):
    model = ConvNet().to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = AssigningScheduler(optimizer)
    model, optimizer, batches, scheduler = run.prepare(model, optimizer, loader(images()), scheduler)
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    updates = 0
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
            updates += 1
            scheduler.step_update(updates)
            run.note_rates(optimizer)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


@training("step", "loader", "convolution")
def timm_like(run):
    """timm's scheduler, mixup and averaged model, in the order of its training script."""
    timm_data = pytest.importorskip("timm.data")
    from timm.loss import SoftTargetCrossEntropy
    from timm.scheduler import CosineLRScheduler
    from timm.utils import ModelEmaV3

    model = ConvNet().to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.05)
    scheduler = CosineLRScheduler(optimizer, t_initial=50, warmup_t=5, warmup_lr_init=1e-4, t_in_epochs=False)
    model, optimizer, batches, scheduler = run.prepare(model, optimizer, loader(images()), scheduler)
    average = ModelEmaV3(model, decay=0.9)
    step = run.train_step(model, optimizer, SoftTargetCrossEntropy())
    torch.manual_seed(3)
    import numpy

    numpy.random.seed(3)
    mixup = timm_data.Mixup(mixup_alpha=0.4, label_smoothing=0.1, num_classes=4)
    updates = 0
    for epoch in range(EPOCHS):
        for inputs, labels in batches:
            mixed, targets = mixup(inputs.to(run.device).clone(), labels.to(run.device))
            run.note("loss", step((mixed, targets)))
            average.update(model, step=updates)
            updates += 1
            scheduler.step_update(num_updates=updates)
            run.note_rates(optimizer)
        scheduler.step(epoch + 1)
    return {"model": model, "optimizer": optimizer, "average": average.module, "scheduler": scheduler}


@training("loader")
def ultralytics_like(run):
    """Warm-up of rates and momentum by assignment, accumulation that grows, clipping, an average that ramps up."""
    import copy

    model = mlp().to(run.device)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    biases = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.SGD(biases, lr=0.05, momentum=0.937, nesterov=True)
    optimizer.add_param_group({"params": matrices, "weight_decay": 5e-4})
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda epoch: max(1 - epoch / EPOCHS, 0) * 0.99 + 0.01)
    model, optimizer, batches, scheduler = run.prepare(model, optimizer, loader(features()), scheduler)
    average = copy.deepcopy(model).eval()
    last_update, iteration = -1, 0
    optimizer.zero_grad()
    for epoch in range(EPOCHS):
        model.train()
        for inputs, labels in batches:
            if iteration <= 10:
                accumulate = max(1, round(1 + iteration / 10))
                for place, group in enumerate(optimizer.param_groups):
                    top = group["initial_lr"] * max(1 - epoch / EPOCHS, 0) * 0.99
                    start = 0.1 if place == 0 else 0.0
                    group["lr"] = start + (top - start) * iteration / 10
                    group["momentum"] = 0.8 + (0.937 - 0.8) * iteration / 10
            loss = functional.cross_entropy(model(inputs.to(run.device)), labels.to(run.device))
            loss.backward()
            run.note("loss", loss)
            run.note_rates(optimizer)
            if iteration - last_update >= accumulate:
                nn.utils.clip_grad_norm_(model.parameters(), 10.0)
                optimizer.step()
                optimizer.zero_grad()
                last_update = iteration
                decay = 0.99 * (1 - math.exp(-iteration / 20))
                for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                    mine.data.mul_(decay).add_(theirs.data, alpha=1 - decay)
            iteration += 1
        scheduler.step()
    return {"model": model, "optimizer": optimizer, "average": average, "scheduler": scheduler}
