"""Inference loops."""

import torch
from torch import nn

from loops.networks import VOCABULARY, ConvNet, TinyGPT, WithOwnLoss, features, generator, images, mlp, tokens
from loops.register import inference


def convnet(run):
    """A network whose norms have seen data."""
    torch.manual_seed(2)
    model = ConvNet(common=True).to(run.device)
    with torch.no_grad():
        for _ in range(5):
            model(images().tensors[0].to(run.device))
    return model


@inference("step", "only_steps", "convolution", "activation", "biased_norm")
def one_by_one(run):
    """Batch size 1, each output used at once."""
    infer = run.infer(convnet(run))
    for image in images().tensors[0]:
        run.note("output", infer(image[None]).clone())
    return {}


@inference("step", "only_steps", "convolution", "activation", "biased_norm")
def collected(run):
    """Outputs are kept in a list and put together in the end, as an evaluation does."""
    infer = run.infer(convnet(run))
    outputs = [infer(images().tensors[0][start : start + 8]) for start in range(0, 40, 8)]
    run.note("outputs", torch.cat(outputs))
    return {}


@inference("step", "convolution", "activation", "biased_norm")
def prepared_first(run):
    """``prepare`` and then ``infer``; the model is also called by itself."""
    model = run.prepare(convnet(run).eval())
    infer = run.infer(model)
    for start in range(0, 40, 8):
        run.note("output", infer(images().tensors[0][start : start + 8]))
    run.note("mode", model.training)
    return {}


@inference("step", "only_steps", "convolution", "activation")
def varying_shapes(run):
    """Image sizes and batch sizes vary; the last batch is smaller."""
    infer = run.infer(convnet(run))
    kept = []
    for turn in range(12):
        size, count = 8 + 4 * (turn % 3), 1 + turn % 2
        kept.append(infer(torch.randn(count, 3, size, size, generator=generator(turn))))
    for output in kept:
        run.note("output", output)
    return {}


@inference("step", "only_steps", "attention", "blocks")
def tokens_one_by_one(run):
    """Greedy generation by the inference step, with input that grows."""
    torch.manual_seed(3)
    model = TinyGPT().to(run.device)
    infer = run.infer(model)
    ids = tokens(2)[:, :3].to(run.device)
    for _ in range(8):
        logits, _ = infer(ids)
        run.note("logits", logits[:, -1].clone())
        ids = torch.cat((ids, (ids[:, -1:] + 1) % VOCABULARY), 1)
    return {}


@inference("step", "only_steps")
def keyword_batches(run):
    """Dict batches without labels, an output with fields."""
    torch.manual_seed(4)
    infer = run.infer(WithOwnLoss().to(run.device))
    for turn in range(10):
        ids = torch.randint(VOCABULARY, (4, 5 + turn % 3), generator=generator(turn))
        mask = torch.ones(ids.shape)
        run.note("logits", infer({"input_ids": ids, "attention_mask": mask}).logits)
    return {}


@inference("step", "only_steps", "convolution", "activation")
def hooked_features(run):
    """Features taken by a hook, which is set before and removed after."""
    model, seen = convnet(run), []
    hook = model.features.register_forward_hook(lambda module, inputs, output: seen.append(output.mean((2, 3)).clone()))
    infer = run.infer(model)
    for start in range(0, 40, 8):
        infer(images().tensors[0][start : start + 8])
    hook.remove()
    run.note("hooks ran", len(seen))
    run.note("features", torch.cat(seen))
    return {}


@inference("step", "only_steps")
def ensemble(run):
    """Two models served in turn."""
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        models.append(run.infer(mlp().to(run.device)))
    for start in range(0, 40, 8):
        run.note("mean", torch.stack([infer(features().tensors[0][start : start + 8]) for infer in models]).mean(0))
    return {}


@inference("step")
def trained_afterwards(run):
    """After inference the model is switched back and trained with a plain step."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4)).to(run.device)
    inputs, labels = (tensor.to(run.device) for tensor in features().tensors)
    infer = run.infer(model)
    for _ in range(3):
        run.note("output", infer(inputs).clone())
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        run.note("loss", loss)
    run.note("output", run.infer(model)(inputs).clone())
    return {"model": model}
