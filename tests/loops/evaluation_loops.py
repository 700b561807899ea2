"""Training loops that evaluate, or generate, between the steps."""

import torch
from torch import nn

from loops.networks import BATCH, EPOCHS, ConvNet, TinyGPT, accuracy, features, images, loader, mlp, tokens
from loops.plain_loops import token_batch
from loops.register import training


@training("step", "loader", "convolution")
def validation(run):
    """``eval()``, a pass over held-out data without gradients, ``train()``, in each epoch; two loaders."""
    model = ConvNet().to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches, held_out = run.prepare(
        model, optimizer, loader(images()), loader(images(16), shuffle=False)
    )
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for _ in range(EPOCHS):
        model.train()
        for batch in batches:
            run.note("loss", step(batch))
        model.eval()
        with torch.no_grad():
            for inputs, labels in held_out:
                logits = model(inputs.to(run.device))
                run.note("held out", logits)
                accuracy(logits, labels.to(run.device))
    return {"model": model, "optimizer": optimizer}


@training("step", "adam", "loader", "convolution")
def validation_by_infer(run):
    """The same with the inference step; ``eval()`` and ``train()`` are called as before."""
    model = ConvNet().to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer, batches = run.prepare(model, optimizer, loader(images()))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for _ in range(EPOCHS):
        model.train()
        for batch in batches:
            run.note("loss", step(batch))
        model.eval()
        infer = run.infer(model)
        run.note("held out", infer(images(16).tensors[0]))
    return {"model": model, "optimizer": optimizer}


@training("step", "loader", "convolution")
def infer_made_once(run):
    """The inference step is made beside the training step, and both are called in turn without switching modes."""
    model = ConvNet().to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer, batches = run.prepare(model, optimizer, loader(images()))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    infer = run.infer(model)
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
            run.note("training", model.training and model.features[1].training)
        run.note("held out", infer(images(16).tensors[0]))
    return {"model": model, "optimizer": optimizer}


@training("step", "attention", "blocks")
def generation(run):
    """A language model writes a few tokens every ten steps, with its own method and growing input."""
    model = TinyGPT().to(run.device)
    model, optimizer = run.prepare(model, model.configure_optimizers(0.01))

    def loss(model, batch):
        return model(*batch)[1]

    step = run.train_step(model, optimizer, loss)
    for iteration in range(50):
        run.note("loss", step(token_batch(iteration, torch.device("cpu"))))
        if iteration % 10 == 9:
            model.eval()
            written = model.generate(tokens(2)[:, :4].to(run.device), 5)
            run.note("length", written.shape[1])
            model.train()
    return {"model": model, "optimizer": optimizer}


@training("step", "loader")
def policy_gradient(run):
    """Samples are drawn by the model itself between the steps; their number changes."""
    model = mlp().to(run.device)
    model, optimizer = run.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))

    def loss(model, batch):
        states, actions, rewards = batch
        chosen = torch.log_softmax(model(states), -1).gather(1, actions.unsqueeze(1)).squeeze(1)
        return -(chosen * rewards).mean()

    step = run.train_step(model, optimizer, loss)
    states, best = (tensor.to(run.device) for tensor in features().tensors)
    for iteration in range(50):
        size = BATCH + 2 * (iteration % 3)
        with torch.no_grad():
            model(states[:size])  # the policy is asked; what it does is fixed here, so that runs can be compared
        actions = (best[:size] + iteration) % 4
        run.note("loss", step((states[:size], actions, (actions == best[:size]).float() - 0.25)))
    return {"model": model, "optimizer": optimizer}
