"""Loops that differ from the plain loop in one part: model, optimizer, loss, schedule, or code between steps."""

import functools

import torch
from torch import nn, optim
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint

from loops.kinds import CLASSES, CROSS_ENTROPY, FEATURES, LOOPS, Loop, scheduled, sgd, started, trained


class Part(nn.Module):
    """A model with one part between two linear layers; ``run`` is what the part is called by."""

    def __init__(self, part, run=lambda part, x: part(x)):
        super().__init__()
        self.first, self.part, self.last = nn.Linear(FEATURES, 16), part, nn.Linear(16, CLASSES)
        self.run = run

    def forward(self, x):
        return self.last(self.run(self.part, torch.tanh(self.first(x))))


class Counts(nn.Module):
    """Writes its buffers in each forward pass of training."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x):
        if self.training:
            self.calls += 1
            self.mean.lerp_(x.detach().float().mean(0), 0.1)
        return x - self.mean.to(x.dtype)


def in_time(part, x):
    return part(x.unflatten(1, (4, 4))).flatten(1)


def by_cells(part, x):
    state = torch.zeros(len(x), 16, device=x.device, dtype=x.dtype)
    for piece in x.chunk(4, 1):
        state = part(piece, state)
    return state


attention = functools.partial(nn.TransformerEncoderLayer, 4, 2, 8, dropout=0.0, batch_first=True)
MODELS = {
    "embedding": lambda: Part(nn.Embedding(2, 16), lambda part, x: x + part((x > 0).long()).mean(1)),
    "cells": lambda: Part(nn.GRUCell(4, 16), by_cells),
    "attention": lambda: Part(attention(), in_time),
    "norm_first": lambda: Part(attention(norm_first=True, activation="gelu"), in_time),
    "convolution_in_time": lambda: Part(nn.Sequential(nn.Conv1d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)), in_time),
    "instance_norm": lambda: Part(nn.InstanceNorm1d(4, affine=True, track_running_stats=True), in_time),
    "layer_norm": lambda: Part(nn.LayerNorm(16), lambda part, x: x + part(x)),
    "rms_norm": lambda: Part(nn.RMSNorm(16)),
    "spectral_norm": lambda: Part(parametrizations.spectral_norm(nn.Linear(16, 16))),
    "weight_norm": lambda: Part(parametrizations.weight_norm(nn.Linear(16, 16))),
    "shared_layer": lambda: Part(nn.Linear(16, 16), lambda part, x: part(torch.relu(part(x)))),
    "checkpointed": lambda: Part(nn.Linear(16, 16), lambda part, x: checkpoint(part, x, use_reentrant=False)),
    "prelu": lambda: Part(nn.PReLU(16)),
    "buffers_of_its_own": lambda: Part(Counts()),
    "dense": lambda: Part(nn.Linear(16, 16), lambda part, x: torch.cat([x[:, :8], part(x)[:, 8:]], 1)),
}
OPTIMIZERS = {
    "nesterov": lambda model: optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "plain_sgd": lambda model: optim.SGD(model.parameters(), lr=0.2),
    "amsgrad": lambda model: optim.Adam(model.parameters(), lr=0.01, amsgrad=True),
    "nadam": lambda model: optim.NAdam(model.parameters(), lr=0.01),
    "radam": lambda model: optim.RAdam(model.parameters(), lr=0.01),
    "adamax": lambda model: optim.Adamax(model.parameters(), lr=0.01),
    "rmsprop": lambda model: optim.RMSprop(model.parameters(), lr=0.003, momentum=0.5),
    "adadelta": lambda model: optim.Adadelta(model.parameters(), lr=0.5),
    "groups": lambda model: optim.AdamW(
        [{"params": model.last.parameters(), "lr": 0.02}, {"params": model.first.parameters(), "weight_decay": 0.0}]
    ),
}


def one_hot(target):
    return (target[:, None] == torch.arange(CLASSES, device=target.device)).float()


def focal(output, target):
    log = functional.log_softmax(output.float(), -1).gather(1, target[:, None])
    return (-((1 - log.exp()) ** 2) * log).mean()


LOSSES = {
    "smoothed_labels": nn.CrossEntropyLoss(label_smoothing=0.1),
    "summed": nn.CrossEntropyLoss(reduction="sum"),
    "squares": lambda output, target: functional.mse_loss(output.float(), one_hot(target)),
    "logits": lambda output, target: functional.binary_cross_entropy_with_logits(output, one_hot(target)),
    "divergence": lambda output, target: functional.kl_div(output.log_softmax(-1), 0.1 + one_hot(target)),
    "margin": nn.MultiMarginLoss(),
    "focal": focal,
}
SCHEDULES = {
    "steps": lambda of: lr_scheduler.StepLR(of, 7),
    "restarts": lambda of: lr_scheduler.CosineAnnealingWarmRestarts(of, 6),
    "by_function": lambda of: lr_scheduler.LambdaLR(of, lambda step: 1 / (1 + step)),
    "warm_up": lambda of: lr_scheduler.SequentialLR(
        of, [lr_scheduler.LinearLR(of, 0.1, total_iters=5), lr_scheduler.ExponentialLR(of, 0.9)], [5]
    ),
    "cyclic": lambda of: lr_scheduler.CyclicLR(of, 0.001, 0.02, 4, cycle_momentum=False),
}


def decayed(epoch, model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 - 0.001 * epoch)


def hooked(epoch, model):
    if epoch == 2 and not model.last._forward_hooks:
        model.last.register_forward_hook(lambda module, args, output: 0.5 * output)


BETWEEN = {
    "weights_decayed_by_hand": decayed,
    "hook_registered_later": hooked,
    "last_layer_frozen_later": lambda epoch, model: model.last.requires_grad_(epoch < 2),
    "statistics_frozen_later": lambda epoch, model: model.norm.train(epoch < 2),
}


def with_schedule(make):
    def run_loop(run):
        model, optimizer, step, batches = started(run, CROSS_ENTROPY)
        return scheduled(run, step, batches, make(optimizer)) | {"model": model, "optimizer": optimizer}

    return run_loop


TABLE = {
    # By SGD: the gradient of a bias that attention or a norm takes away is rounding alone, which Adam blows up.
    **{f"model_{name}": lambda run, make=make: trained(run, model=make(), make=sgd) for name, make in MODELS.items()},
    **{f"optimizer_{name}": lambda run, make=make: trained(run, make=make) for name, make in OPTIMIZERS.items()},
    **{f"loss_{name}": lambda run, loss=loss: trained(run, loss) for name, loss in LOSSES.items()},
    **{f"schedule_{name}": with_schedule(make) for name, make in SCHEDULES.items()},
    **{name: lambda run, begin=begin: trained(run, begin=begin) for name, begin in BETWEEN.items()},
}
LOOPS |= {name: Loop(function, {}, False) for name, function in TABLE.items()}
