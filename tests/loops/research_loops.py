"""Training loops of research code: several models, draws inside the step, two backward passes, averaged encoders."""

import copy

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import BatchSampler, RandomSampler, WeightedRandomSampler

from loops.networks import BATCH, CLASSES, EPOCHS, FEATURES, features, generator, images, loader, mlp
from loops.register import training


def drawn(iteration, device, *shape):
    return torch.randn(*shape, generator=generator(iteration)).to(device)


@training("loader")
def momentum_encoder(run):
    """MoCo: a second encoder follows the first, and a queue of its outputs is a buffer."""
    query = mlp(outputs=8).to(run.device)
    key = copy.deepcopy(query).requires_grad_(False)
    queue = functional.normalize(drawn(0, run.device, 16, 8), dim=1)
    query, optimizer, batches = run.prepare(query, torch.optim.SGD(query.parameters(), lr=0.05), loader(features()))
    for _ in range(EPOCHS):
        for inputs, _ in batches:
            view = inputs.to(run.device)
            q = functional.normalize(query(view), dim=1)
            with torch.no_grad():
                for slow, fast in zip(key.parameters(), query.parameters(), strict=True):
                    slow.lerp_(fast, 0.1)
                k = functional.normalize(key(view + 0.1), dim=1)
            logits = torch.cat(((q * k).sum(1, keepdim=True), q @ queue.T), 1) / 0.5
            loss = functional.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=run.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            queue = torch.cat((k, queue))[:16]
            run.note("loss", loss)
    return {"query": query, "key": key, "optimizer": optimizer}


@training("step", "loader")
def variational(run):
    """A reparameterised sample; the noise is part of the batch."""

    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = mlp(outputs=8), mlp(4, FEATURES)

        def forward(self, inputs, noise):
            mean, log_variance = self.encoder(inputs).chunk(2, 1)
            return self.decoder(mean + noise * torch.exp(log_variance / 2)), mean, log_variance

    model = Vae().to(run.device)
    model, optimizer, batches = run.prepare(model, torch.optim.Adam(model.parameters(), lr=0.005), loader(features()))

    def loss(model, batch):
        made, mean, log_variance = model(*batch)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return functional.mse_loss(made, batch[0]) + 0.1 * divergence

    step = run.train_step(model, optimizer, loss)
    for epoch in range(EPOCHS):
        for place, (inputs, _) in enumerate(batches):
            run.note("loss", step((inputs, torch.randn(len(inputs), 4, generator=generator(10 * epoch + place)))))
    return {"model": model, "optimizer": optimizer}


@training("step")
def diffusion(run):
    """A denoiser with random timesteps, and an average of its weights after every step."""
    model = mlp(FEATURES + 1, FEATURES).to(run.device)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    model, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    signal = torch.linspace(0.99, 0.1, 20).to(run.device)

    def loss(model, batch):
        clean, noise, times = batch
        kept = signal[times].unsqueeze(1)
        noised = kept.sqrt() * clean + (1 - kept).sqrt() * noise
        return functional.mse_loss(model(torch.cat((noised, times.unsqueeze(1) / 20), 1)), noise)

    step = run.train_step(model, optimizer, loss)
    for iteration in range(50):
        times = torch.randint(20, (BATCH,), generator=generator(iteration))
        clean, noise = (drawn(place + iteration, "cpu", BATCH, FEATURES) for place in (100, 200))
        run.note("loss", step((clean, noise, times)))
        average.update_parameters(model)
    return {"model": model, "average": average, "optimizer": optimizer}


@training("loader")
def sharpness_aware(run):
    """SAM: a second backward pass at weights that were moved up the gradient."""
    model = mlp().to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, loader(features()))
    for _ in range(EPOCHS):
        for inputs, labels in batches:
            inputs, labels = inputs.to(run.device), labels.to(run.device)  # noqa: PLW2901
            functional.cross_entropy(model(inputs), labels).backward()
            with torch.no_grad():
                norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
                moves = [0.05 * p.grad / norm for p in model.parameters()]
                torch._foreach_add_(list(model.parameters()), moves)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), labels)
            loss.backward()
            with torch.no_grad():
                torch._foreach_sub_(list(model.parameters()), moves)
            optimizer.step()
            optimizer.zero_grad()
            run.note("loss", loss)
    return {"model": model, "optimizer": optimizer}


@training("step")
def actor_critic(run):
    """Two optimizers and a trunk that both losses train, in steps of their own; episodes differ in length."""

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk, self.policy, self.value = mlp(outputs=8), nn.Linear(8, CLASSES), nn.Linear(8, 1)

        def forward(self, states):
            hidden = torch.tanh(self.trunk(states))
            return self.policy(hidden), self.value(hidden).squeeze(1)

    model = Agent().to(run.device)
    actor = torch.optim.Adam([*model.trunk.parameters(), *model.policy.parameters()], lr=0.005)
    critic = torch.optim.Adam(model.value.parameters(), lr=0.01)
    model, actor, critic = run.prepare(model, actor, critic)

    def actor_loss(model, batch):
        states, actions, rewards = batch
        logits, values = model(states)
        chosen = torch.log_softmax(logits, 1).gather(1, actions.unsqueeze(1)).squeeze(1)
        return -(chosen * (rewards - values.detach())).mean()

    def critic_loss(model, batch):
        return functional.mse_loss(model(batch[0])[1], batch[2])

    steps = [run.train_step(model, actor, actor_loss), run.train_step(model, critic, critic_loss)]
    for iteration in range(25):
        length = 3 + iteration % 4
        states = drawn(iteration, "cpu", length, FEATURES)
        batch = states, states[:, :CLASSES].argmax(1), states.mean(1)
        for name, step in zip(("actor loss", "critic loss"), steps, strict=True):
            run.note(name, step(batch))
    return {"model": model, "actor": actor, "critic": critic}


@training("step", "loader")
def weighted_samples(run):
    """Samples drawn by weight, each with a weight of its own in the loss."""
    model, dataset = mlp().to(run.device), features()
    sampler = WeightedRandomSampler(torch.linspace(1, 3, len(dataset)), len(dataset))
    batches = loader(dataset, shuffle=False, sampler=sampler)
    model, optimizer, batches = run.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01), batches)

    def loss(model, batch):
        inputs, labels, weights = batch
        return (functional.cross_entropy(model(inputs), labels, reduction="none") * weights).mean()

    step = run.train_step(model, optimizer, loss)
    for _ in range(EPOCHS):
        for inputs, labels in batches:
            run.note("loss", step((inputs, labels, 1 + labels.float())))
    return {"model": model, "optimizer": optimizer}


@training("step", "loader", "workers")
def own_batch_sampler(run):
    """A batch sampler of the script, and dictionaries that hold texts beside tensors."""
    dataset, model = features(), mlp().to(run.device)
    batches = loader(
        dataset,
        shuffle=None,
        batch_size=1,
        batch_sampler=BatchSampler(RandomSampler(dataset), BATCH, drop_last=True),
        collate_fn=named,
    )
    model, optimizer, batches = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), batches)

    def loss(model, batch):
        return functional.cross_entropy(model(batch["inputs"]), batch["labels"])

    step = run.train_step(model, optimizer, loss)
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
    return {"model": model, "optimizer": optimizer}


def named(samples):
    inputs, labels = zip(*samples, strict=True)
    names = [f"class {int(label)}" for label in labels]
    return {"inputs": torch.stack(inputs), "labels": torch.stack(labels), "names": names}


@training("step", "loader", "convolution")
def growing_images(run):
    """A curriculum: images grow from epoch to epoch; mixup of images and of labels inside the loss."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)
    ).to(run.device)
    model, optimizer, batches = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01), loader(images()))

    def loss(model, batch):
        pictures, labels = batch
        mixed = 0.7 * pictures + 0.3 * pictures.roll(1, 0)
        targets = 0.7 * functional.one_hot(labels, CLASSES) + 0.3 * functional.one_hot(labels.roll(1, 0), CLASSES)
        return functional.cross_entropy(model(mixed), targets, label_smoothing=0.1)

    step = run.train_step(model, optimizer, loss)
    for epoch in range(EPOCHS):
        size = 4 + 2 * (epoch // 4)
        for pictures, labels in batches:
            run.note("loss", step((functional.interpolate(pictures, size=(size, size)), labels)))
    return {"model": model, "optimizer": optimizer}


class Straight(torch.autograd.Function):
    """A rounding whose gradient passes through."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(4 * x) / 4

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Checkpointed(nn.Module):
    """The user's own activation checkpoint around a spectral norm, a custom function and a scripted part."""

    def __init__(self):
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(FEATURES, 16))
        self.second = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
        self.head = nn.Linear(16, CLASSES)

    def forward(self, inputs):
        hidden = torch.tanh(self.first(inputs))
        hidden = checkpoint(self.second, hidden, use_reentrant=False)
        return self.head(Straight.apply(hidden))


@training("step", "loader")
def own_functions(run):
    """A custom autograd function, a checkpoint and a spectral norm; gradients are clipped by value in a hook."""
    torch.manual_seed(9)
    model = Checkpointed().to(run.device)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.5, 0.5))
    model, optimizer, batches = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05), loader(features()))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
    return {"model": model, "optimizer": optimizer}


@training("step")
def late_parameters(run):
    """Layers join the optimizer's only group while it trains: a progressive unfreezing by appending."""
    inputs, labels = (tensor.to(run.device) for tensor in features().tensors)
    model = mlp().to(run.device)
    optimizer = torch.optim.SGD(list(model[4].parameters()), lr=0.1, momentum=0.9)
    model, optimizer = run.prepare(model, optimizer)
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for iteration in range(50):
        if iteration in (10, 25):
            optimizer.param_groups[0]["params"] += list(model[2 if iteration == 10 else 0].parameters())
        run.note("loss", step((inputs, labels)))
    return {"model": model, "optimizer": optimizer}


@training()
def functional_loss(run):
    """Gradients for each sample by ``torch.func``, clipped one by one, put into ``grad`` by hand."""
    model = mlp().to(run.device)
    model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, labels = (tensor.to(run.device) for tensor in features(16).tensors)

    def loss_of(parameters, sample, label):
        output = torch.func.functional_call(model, parameters, (sample.unsqueeze(0),))
        return functional.cross_entropy(output, label.unsqueeze(0))

    each = torch.func.vmap(torch.func.grad_and_value(loss_of), in_dims=(None, 0, 0))
    for _ in range(20):
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
        gradients, losses = each(parameters, inputs, labels)
        for name, parameter in model.named_parameters():
            flat = gradients[name].flatten(1)
            scale = (1.0 / flat.norm(dim=1).clamp(min=1.0)).view(-1, *[1] * parameter.dim())
            parameter.grad = (gradients[name] * scale).mean(0)
        optimizer.step()
        run.note("loss", losses.mean())
    return {"model": model, "optimizer": optimizer}
