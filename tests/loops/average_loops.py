"""Training loops that average weights, or swap them."""

import copy

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

from loops.networks import EPOCHS, ConvNet, features, images, loader, mlp
from loops.register import training


@training("step", "loader", "convolution")
def ema_by_hand(run):
    """A deep copy of the model that follows it, buffers too; it is the one that is validated and saved."""
    model = ConvNet().to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, loader(images()))
    average = copy.deepcopy(model).eval().requires_grad_(False)
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
            with torch.no_grad():
                mine, theirs = average.state_dict(), model.state_dict()
                for name, value in mine.items():
                    if value.is_floating_point():
                        value.mul_(0.9).add_(theirs[name], alpha=0.1)
                    else:
                        value.copy_(theirs[name])
    fresh = ConvNet().to(run.device)
    fresh.load_state_dict(average.state_dict())
    return {"model": model, "optimizer": optimizer, "average": fresh}


@training("step", "loader")
def ema_of_torch(run):
    """AveragedModel with an exponential average, made after ``prepare``."""
    model = mlp().to(run.device)
    model, optimizer, batches = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01), loader(features()))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
            average.update_parameters(model)
    with torch.no_grad():
        run.note("averaged output", average(features().tensors[0].to(run.device)))
    return {"model": model, "optimizer": optimizer, "average": average}


@training("step", "loader", "convolution", "activation", "biased_norm")
def ema_made_before(run):
    """The copy is made of the plain model before ``prepare``, as many scripts do."""
    model = ConvNet().to(run.device)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    model, optimizer, batches = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05), loader(images()))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
            average.update_parameters(model)
    return {"model": model, "optimizer": optimizer, "average": average.module}


@training("step", "loader")
def ema_swapped_in(run):
    """The averaged weights take the model's place for validation and give it back, as diffusion training does it."""
    model = mlp().to(run.device)
    model, optimizer, batches = run.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01), loader(features()))
    shadow = [p.detach().clone() for p in model.parameters()]
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    inputs = features().tensors[0].to(run.device)
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
            with torch.no_grad():
                for mine, theirs in zip(shadow, model.parameters(), strict=True):
                    mine.lerp_(theirs, 0.1)
        kept = [p.data.clone() for p in model.parameters()]
        for parameter, mine in zip(model.parameters(), shadow, strict=True):
            parameter.data.copy_(mine)
        model.eval()
        with torch.no_grad():
            run.note("averaged output", model(inputs))
        model.train()
        for parameter, mine in zip(model.parameters(), kept, strict=True):
            parameter.data.copy_(mine)
    return {"model": model, "optimizer": optimizer}


@training("step", "loader")
def weights_replaced(run):
    """The storage of the weights is replaced between steps (``p.data = ...``), as when weights are offloaded."""
    model = mlp().to(run.device)
    model, optimizer, batches = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader(features()))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
        for parameter in model.parameters():
            parameter.data = parameter.data.clone() * 0.99
    return {"model": model, "optimizer": optimizer}


@training("step", "loader", "convolution")
def swa(run):
    """Stochastic weight averaging: SWALR in the last epochs, then the norms' statistics of the average."""
    model = ConvNet().to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, loader(images()))
    average = AveragedModel(model)
    swa_rates = SWALR(optimizer, swa_lr=0.01, anneal_epochs=2)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for epoch in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
        if epoch >= 5:
            average.update_parameters(model)
            swa_rates.step()
        else:
            cosine.step()
        run.note_rates(optimizer)
    update_bn(loader(images(), shuffle=False), average, device=run.device)
    return {"model": model, "optimizer": optimizer, "average": average}
