"""Training loops by what they minimise, and by who steps."""

import torch
from torch import nn
from torch.nn import functional

from loops.networks import BATCH, CLASSES, EPOCHS, FEATURES, features, generator, loader, mlp
from loops.register import training


def noise(iteration, device, size=BATCH):
    return torch.randn(size, FEATURES, generator=generator(iteration)).to(device)


def real(iteration, device):
    return torch.tanh(noise(1000 + iteration, device)) + 1.0


@training()
def gan(run):
    """Two models, two optimizers, and a loss of the discriminator that is a sum."""
    maker, judge = mlp(FEATURES, FEATURES).to(run.device), mlp(FEATURES, 1).to(run.device)
    maker_optimizer = torch.optim.Adam(maker.parameters(), lr=0.002, betas=(0.5, 0.999))
    judge_optimizer = torch.optim.Adam(judge.parameters(), lr=0.002, betas=(0.5, 0.999))
    maker, judge, maker_optimizer, judge_optimizer = run.prepare(maker, judge, maker_optimizer, judge_optimizer)
    criterion = nn.BCEWithLogitsLoss()
    for iteration in range(50):
        made = maker(noise(iteration, run.device))
        judged = judge(real(iteration, run.device)), judge(made.detach())
        loss = criterion(judged[0], torch.ones_like(judged[0])) + criterion(judged[1], torch.zeros_like(judged[1]))
        judge_optimizer.zero_grad()
        loss.backward()
        judge_optimizer.step()
        verdict = judge(made)
        maker_loss = criterion(verdict, torch.ones_like(verdict))
        maker_optimizer.zero_grad()
        maker_loss.backward()
        maker_optimizer.step()
        run.note("judge loss", loss)
        run.note("maker loss", maker_loss)
    return {"maker": maker, "judge": judge, "maker_optimizer": maker_optimizer, "judge_optimizer": judge_optimizer}


@training("step")
def gan_with_steps(run):
    """The same with two training steps, each with its own model, optimizer and loss."""
    maker, judge = mlp(FEATURES, FEATURES).to(run.device), mlp(FEATURES, 1).to(run.device)
    maker, maker_optimizer = run.prepare(maker, torch.optim.Adam(maker.parameters(), lr=0.002))
    judge, judge_optimizer = run.prepare(judge, torch.optim.Adam(judge.parameters(), lr=0.002))

    def judge_loss(model, batch):
        seeds, samples = batch
        with torch.no_grad():
            made = maker(seeds)
        return functional.softplus(-model(samples)).mean() + functional.softplus(model(made)).mean()

    def maker_loss(model, batch):
        return functional.softplus(-judge(model(batch))).mean()

    judge_step = run.train_step(judge, judge_optimizer, judge_loss)
    maker_step = run.train_step(maker, maker_optimizer, maker_loss)
    for iteration in range(50):
        seeds = noise(iteration, run.device)
        run.note("judge loss", judge_step((seeds, real(iteration, run.device))))
        run.note("maker loss", maker_step(seeds))
    return {"maker": maker, "judge": judge, "maker_optimizer": maker_optimizer, "judge_optimizer": judge_optimizer}


@training()
def gradient_penalty(run):
    """A loss that holds a gradient, with second derivatives."""
    judge = mlp(FEATURES, 1).to(run.device)
    judge, optimizer = run.prepare(judge, torch.optim.Adam(judge.parameters(), lr=0.002))
    for iteration in range(50):
        samples, made = real(iteration, run.device), noise(iteration, run.device)
        between = (0.5 * (samples + made)).requires_grad_(True)
        (gradient,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
        loss = judge(made).mean() - judge(samples).mean() + 10 * (gradient.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.note("loss", loss)
    return {"judge": judge, "optimizer": optimizer}


class Weighted(nn.Module):
    """Two losses; the weight of the second grows while training."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = 0.0

    def forward(self, output, target):
        return functional.cross_entropy(output, target) + self.weight * output.square().mean()


@training("step", "loader")
def changing_weight_of_a_module(run):
    """The weight is a number on a loss that is a module."""
    model, loss = mlp().to(run.device), Weighted()
    model, optimizer, batches = run.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01), loader(features()))
    step = run.train_step(model, optimizer, loss)
    for epoch in range(EPOCHS):
        loss.weight = 0.1 * epoch
        for batch in batches:
            run.note("loss", step(batch))
    return {"model": model, "optimizer": optimizer}


@training("step", "loader")
def changing_weight_in_the_batch(run):
    """The weight reaches the loss as a tensor of the batch, which every kind of step follows."""
    model = mlp().to(run.device)
    model, optimizer, batches = run.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01), loader(features()))

    def loss(model, batch):
        inputs, labels, weight = batch
        output = model(inputs)
        return functional.cross_entropy(output, labels) + weight * output.square().mean()

    step = run.train_step(model, optimizer, loss)
    for epoch in range(EPOCHS):
        for inputs, labels in batches:
            run.note("loss", step((inputs, labels, torch.tensor(0.1 * epoch))))
    return {"model": model, "optimizer": optimizer}


@training("step", "loader")
def learned_weights(run):
    """Parameters of the loss are trained too, in the same optimizer."""

    class Uncertainty(nn.Module):
        def __init__(self):
            super().__init__()
            self.logs = nn.Parameter(torch.zeros(2))

        def forward(self, output, target):
            losses = torch.stack((functional.cross_entropy(output, target), output.square().mean()))
            return (losses * torch.exp(-self.logs) + self.logs).sum()

    model, loss = mlp().to(run.device), Uncertainty().to(run.device)
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()], lr=0.01)
    model, optimizer, batches = run.prepare(model, optimizer, loader(features()))
    step = run.train_step(model, optimizer, loss)
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
    return {"model": model, "optimizer": optimizer, "loss": loss}


@training("step", "loader")
def distillation(run):
    """A teacher in eval mode inside the loss."""
    torch.manual_seed(7)
    teacher = nn.Sequential(nn.Linear(FEATURES, 16), nn.Dropout(0.5), nn.Linear(16, CLASSES)).to(run.device).eval()
    model = mlp().to(run.device)
    model, optimizer, batches = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01), loader(features()))

    def loss(model, batch):
        inputs, labels = batch
        with torch.no_grad():
            taught = torch.softmax(teacher(inputs) / 2, -1)
        logits = model(inputs)
        soft = functional.kl_div(torch.log_softmax(logits / 2, -1), taught, reduction="batchmean")
        return 0.5 * functional.cross_entropy(logits, labels) + 2.0 * soft

    step = run.train_step(model, optimizer, loss)
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
    return {"model": model, "optimizer": optimizer}


@training("step", "only_steps", "loader")
def contrastive(run):
    """The model runs twice in one step, on two views."""
    model = mlp(outputs=8).to(run.device)
    model, optimizer, batches = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01), loader(features()))

    def loss(model, batch):
        first, second = (functional.normalize(model(view), dim=1) for view in batch)
        return functional.cross_entropy(first @ second.T / 0.5, torch.arange(len(first), device=first.device))

    step = run.train_step(model, optimizer, loss)
    for _ in range(EPOCHS):
        for inputs, _ in batches:
            run.note("loss", step((inputs, inputs + 0.1 * inputs.roll(1, 0))))
    return {"model": model, "optimizer": optimizer}


@training("step", "any_optimizer")
def lbfgs(run):
    """LBFGS asks for a closure, which ``train_step`` does not give it."""
    inputs, labels = (tensor.to(run.device) for tensor in features().tensors)
    model = mlp().to(run.device)
    model, optimizer = run.prepare(model, torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=2))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    run.note("loss", step((inputs, labels)))
    return {"model": model}


@training("any_optimizer")
def lbfgs_own(run):
    """LBFGS with the script's own closure works behind ``prepare``."""
    inputs, labels = (tensor.to(run.device) for tensor in features().tensors)
    model = mlp().to(run.device)
    model, optimizer = run.prepare(model, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2))

    def closure():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    for _ in range(25):
        run.note("loss", optimizer.step(closure))
    return {"model": model}


@training("step", "loader", always={"step.accumulate": 5})
def accumulating_setting(run):
    """``step.accumulate`` does what a loop does by hand that divides the loss and updates after five batches."""
    model = mlp().to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, loader(features()))
    tuned = type(run).__name__ == "TunedRun"
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss()) if tuned else None
    model.train()
    for _ in range(EPOCHS):
        for place, batch in enumerate(batches, 1):
            if step is not None:
                run.note("loss", step(batch))
                continue
            inputs, labels = (part.to(run.device) for part in batch)
            loss = functional.cross_entropy(model(inputs), labels)
            (loss / 5).backward()
            run.note("loss", loss)
            if place % 5 == 0:
                optimizer.step()
                optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}
