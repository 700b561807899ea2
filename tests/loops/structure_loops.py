"""Training loops that change, freeze or extend the model."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from loops.networks import CLASSES, EPOCHS, FEATURES, VOCABULARY, ConvNet, TinyGPT, features, images, loader, mlp
from loops.plain_loops import token_batch
from loops.register import training


@training("step", "loader", "convolution")
def frozen_backbone(run):
    """A frozen backbone with its batch norms in eval mode, a new head that learns."""
    model = ConvNet().to(run.device)
    model.features.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, loader(images()))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for _ in range(EPOCHS):
        model.train()
        model.features.eval()
        for batch in batches:
            run.note("loss", step(batch))
    return {"model": model, "optimizer": optimizer}


@training("step", "loader", "convolution")
def unfrozen_later(run):
    """The backbone starts to learn after some epochs; the optimizer has had its parameters all along."""
    model = ConvNet().to(run.device)
    model.features.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, batches = run.prepare(model, optimizer, loader(images()))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for epoch in range(EPOCHS):
        if epoch == 4:
            model.features.requires_grad_(True)
        if epoch == 8:
            model.head.requires_grad_(False)
        for batch in batches:
            run.note("loss", step(batch))
    return {"model": model, "optimizer": optimizer}


@training("step", "loader", "convolution")
def group_added_later(run):
    """The backbone's parameters come into the optimizer, with a rate of their own, when it is unfrozen."""
    model = ConvNet().to(run.device)
    model.features.requires_grad_(False)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, loader(images()))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for epoch in range(EPOCHS):
        if epoch == 4:
            model.features.requires_grad_(True)
            optimizer.add_param_group({"params": model.features.parameters(), "lr": 0.02})
        for batch in batches:
            run.note("loss", step(batch))
        run.note_rates(optimizer)
    return {"model": model, "optimizer": optimizer}


@training("step", "attention", "blocks")
def tied_weights(run):
    """Embedding and output share one tensor before and after, also in the checkpoint."""
    model = TinyGPT().to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = run.prepare(model, optimizer)

    def loss(model, batch):
        return model(*batch)[1]

    step = run.train_step(model, optimizer, loss)
    for iteration in range(50):
        run.note("loss", step(token_batch(iteration, torch.device("cpu"))))
    run.note("tied", model.tokens.weight is model.head.weight)
    run.note("of the class", isinstance(model, TinyGPT))
    return {"model": model, "optimizer": optimizer}


@training("step", "loader")
def lora(run):
    """A PEFT adapter on a frozen model; merged in the end."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["0", "2"], modules_to_save=["4"])
    torch.manual_seed(5)
    model = peft.get_peft_model(mlp(), config).to(run.device)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.02)
    model, optimizer, batches = run.prepare(model, optimizer, loader(features()))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
    adapter = peft.get_peft_model_state_dict(model)
    run.note("adapter", ", ".join(sorted(adapter)))
    model.eval()
    with torch.no_grad():
        run.note("output", model(features().tensors[0].to(run.device)))
    return {"model": model, "optimizer": optimizer, "merged": model.merge_and_unload()}


class LowRank(nn.Linear):
    """A layer of one's own that derives from ``nn.Linear`` and computes something else."""

    def __init__(self, inputs, outputs, rank=2):
        super().__init__(inputs, outputs)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x):
        return super().forward(x) + self.up(self.down(x))


class ScaledConv(nn.Conv2d):
    """Weight standardisation: a convolution of one's own before a batch norm."""

    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return functional.conv2d(x, weight, self.bias, padding=self.padding) + 0.1 * x.mean()


@training("step", "loader", "convolution", "activation", "biased_norm")
def own_layers(run):
    """Layers that derive from PyTorch's, a weight norm, and a hook that changes what a layer returns."""
    torch.manual_seed(6)
    model = nn.Sequential(
        ScaledConv(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 3, padding=1)),
        nn.BatchNorm2d(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        LowRank(8, CLASSES),
    ).to(run.device)
    model[3].register_forward_hook(lambda module, inputs, output: output + 0.5 * inputs[0].mean())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, loader(images()))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
    return {"model": model, "optimizer": optimizer}


@training("step", "any_optimizer")
def sparse_embeddings(run):
    """Two optimizers for one model: sparse gradients for the table, Adam for the rest."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(VOCABULARY, 12, sparse=True)
            self.rest = mlp(12)

        def forward(self, ids):
            return self.rest(self.table(ids).mean(1))

    model = Net().to(run.device)
    sparse = torch.optim.SparseAdam(list(model.table.parameters()), lr=0.02)
    dense = torch.optim.Adam(model.rest.parameters(), lr=0.01)
    model, sparse, dense = run.prepare(model, sparse, dense)
    model.train()
    for iteration in range(50):
        ids = torch.randint(VOCABULARY, (8, 5), generator=torch.Generator().manual_seed(iteration)).to(run.device)
        loss = functional.cross_entropy(model(ids), ids.sum(1) % CLASSES)
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
        run.note("loss", loss)
    return {"model": model, "sparse": sparse, "dense": dense}


class OwnOptimizer(torch.optim.SGD):
    """An optimizer of one's own: a centred gradient before SGD's step, and a counter."""

    def __init__(self, params, lr, momentum=0.0):
        super().__init__(params, lr=lr, momentum=momentum)
        self.updates = 0

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.dim() > 1:
                    parameter.grad -= parameter.grad.mean(dim=1, keepdim=True)
        self.updates += 1
        return super().step(closure)


@training("step", "loader")
def own_optimizer(run):
    model = mlp(FEATURES).to(run.device)
    optimizer = OwnOptimizer(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, loader(features()))
    step = run.train_step(model, optimizer, nn.CrossEntropyLoss())
    for _ in range(EPOCHS):
        for batch in batches:
            run.note("loss", step(batch))
    run.note("updates", optimizer.updates)
    run.note("class", type(optimizer).__name__)
    return {"model": model, "optimizer": optimizer}
