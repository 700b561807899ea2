"""Training loops that stop and go on: from plain to tuned, from tuned to plain, and tuned to tuned."""

import io

import torch
from torch import nn
from torch.optim import lr_scheduler

from loops.networks import BATCH, SAMPLES, ConvNet, TinyGPT, images, mlp
from loops.plain_loops import token_batch
from loops.register import training

HALF = 25


def through_a_file(checkpoint):
    """A checkpoint as it is after it was written and read, with nothing in it but tensors and plain values."""
    file = io.BytesIO()
    torch.save(checkpoint, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def image_batch(iteration):
    data = images()
    rows = torch.arange(iteration * BATCH, (iteration + 1) * BATCH) % SAMPLES
    return data.tensors[0][rows], data.tensors[1][rows]


def resumed(run, model_of, optimizer_of, scheduler_of, *, loss, batch_of):
    """Half of the steps, a checkpoint, and the other half in objects made anew."""
    checkpoint = None
    for part, now in enumerate((run, run.restarted)):
        torch.manual_seed(part)
        model = model_of().to(run.device)
        optimizer = optimizer_of(model)
        scheduler = scheduler_of(optimizer)
        model, optimizer, scheduler = now.prepare(model, optimizer, scheduler)
        step = now.train_step(model, optimizer, loss)
        if checkpoint:
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            scheduler.load_state_dict(checkpoint["scheduler"])
            if step.scaler is not None:
                step.scaler.load_state_dict(checkpoint["scaler"])
        for iteration in range(part * HALF, (part + 1) * HALF):
            run.note("loss", step(batch_of(iteration)))
            run.note_rates(optimizer)
            scheduler.step()
        states = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        scaler = {"scaler": step.scaler.state_dict() if step.scaler is not None else {}}
        checkpoint = through_a_file({name: item.state_dict() for name, item in states.items()} | scaler)
        run.note("scale", checkpoint["scaler"].get("scale", 1.0))
        run.note("keys", ", ".join(checkpoint["model"]))
    return states


@training("step", "convolution", resumes=True)
def resume_adamw(run):
    return resumed(
        run,
        ConvNet,
        lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=50),
        loss=nn.CrossEntropyLoss(),
        batch_of=image_batch,
    )


@training("step", "convolution", "activation", "biased_norm", resumes=True)
def resume_sgd(run):
    return resumed(
        run,
        lambda: ConvNet(common=True),
        lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=51),
        loss=nn.CrossEntropyLoss(),
        batch_of=image_batch,
    )


@training("step", "attention", "blocks", resumes=True)
def resume_gpt(run):
    """A language model with tied embeddings and two groups of parameters."""

    def loss(model, batch):
        return model(*batch)[1]

    return resumed(
        run,
        TinyGPT,
        lambda model: model.configure_optimizers(0.01),
        lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step)),
        loss=loss,
        batch_of=lambda iteration: token_batch(iteration, torch.device("cpu")),
    )


@training("step")
def rewound(run):
    """Model and optimizer are set back to a checkpoint in the middle of the run, into the same objects."""
    model = mlp(3 * 8 * 8).to(run.device)
    model, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.003))

    def loss(model, batch):
        images, labels = batch
        return nn.functional.cross_entropy(model(images.flatten(1)), labels)

    step = run.train_step(model, optimizer, loss)
    for iteration in range(50):
        if iteration == 10:
            checkpoint = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        if iteration == 30:
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
        run.note("loss", step(image_batch(iteration)))
    return {"model": model, "optimizer": optimizer}


@training("step")
def checkpoint_first(run):
    """The checkpoint is loaded into the plain objects before ``prepare``, as when a script is edited after a run."""
    plain_model, data = mlp(3 * 8 * 8).to(run.device), images()
    earlier = torch.optim.AdamW(plain_model.parameters(), lr=0.002)
    for _ in range(5):
        earlier.zero_grad()
        inputs, labels = (tensor.to(run.device) for tensor in data.tensors)
        nn.functional.cross_entropy(plain_model(inputs.flatten(1)), labels).backward()
        earlier.step()
    checkpoint = through_a_file({"model": plain_model.state_dict(), "optimizer": earlier.state_dict()})
    model = mlp(3 * 8 * 8).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    model, optimizer = run.prepare(model, optimizer)
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for iteration in range(45):
        inputs, labels = image_batch(iteration)
        run.note("loss", step((inputs.flatten(1), labels)))
        run.note_rates(optimizer)
    return {"model": model, "optimizer": optimizer}
