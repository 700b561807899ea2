"""Exported Python files on a GPU: they train and answer as a plain loop does, through their graphs."""

import copy
from dataclasses import replace

import pytest
import torch
from exported_module import module_of
from facts import gpu_facts
from torch import nn

from advisor.python.file import WrittenFor
from advisor.recipe.catalog import load_catalog
from advisor.records import BatchForm, OptimizerFacts

pytestmark = pytest.mark.gpu
GRAPH = {"step.cuda_graph": True}
SCHEDULES = (torch.optim.lr_scheduler.ExponentialLR, torch.optim.lr_scheduler.OneCycleLR)


def net():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(128, 4)).cuda()


def batches(count=14, size=16):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, size, 3, 16, 16, generator=generator)
    return list(zip(images, torch.randint(0, 4, (count, size), generator=generator), strict=True))


PAIR = BatchForm("list", ("batch[0]",), "batch[1]")
TENSOR = BatchForm("tensor", ("batch",))


def workload(name, *, capturable, clip=None):
    optimizer = OptimizerFacts(name, "foreach", ("for-loop", "foreach", "fused"), capturable, 6)
    return WrittenFor("output_target", PAIR, gpu_facts(optimizer=optimizer, clip_norm=clip).workload)


OPTIMIZERS = {
    "Adam": (lambda parameters: torch.optim.Adam(parameters, lr=0.01), True),
    "AdamW": (lambda parameters: torch.optim.AdamW(parameters, lr=0.01), True),
    "SGD": (lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9), False),
}


@pytest.mark.parametrize(
    ("name", "settings", "schedule"),
    [
        ("Adam", {"optimizer.implementation": "fused"}, SCHEDULES[1]),
        ("Adam", {"optimizer.implementation": "fused", "step.cuda_graph": "around_loss"}, SCHEDULES[0]),
        ("AdamW", {"optimizer.implementation": "fused", "compile.scope": "with_loss"}, SCHEDULES[0]),
        ("SGD", {"optimizer.implementation": "fused", "step.zero_grad": "zeros"}, SCHEDULES[0]),
    ],
)
def test_a_captured_step_trains_as_a_plain_loop(name, settings, schedule):
    """With a schedule, a smaller batch, a frozen layer and a checkpoint that is loaded."""
    make, capturable = OPTIMIZERS[name]
    module = module_of(load_catalog(), {**GRAPH, **settings}, "train", workload(name, capturable=capturable, clip=1.0))
    options = {"gamma": 0.9} if schedule is SCHEDULES[0] else {"max_lr": 0.05, "total_steps": 40}
    reference, model = net(), net()
    plain = make(reference.parameters())
    model, tuned, _ = module.prepare(model, make(model.parameters()))
    step = module.train_step(model, tuned, nn.functional.cross_entropy)
    schedules = [schedule(one, **options) for one in (plain, tuned)]
    for at, (images, target) in enumerate([*batches(), *batches(6, size=8), *batches(8)]):
        if at == 20:
            for one, weights in ((reference, plain), (model, tuned)):
                one[0].requires_grad_(False)
                weights.load_state_dict(copy.deepcopy(weights.state_dict()))
        plain.zero_grad()
        loss = nn.functional.cross_entropy(reference(images.cuda()), target.cuda())
        loss.backward()
        nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
        plain.step()
        assert step((images, target)).item() == pytest.approx(loss.item(), rel=2e-2, abs=2e-3), at
        for one in schedules:
            one.step()
    changes = schedule is SCHEDULES[1] and name == "Adam"  # its betas, at each step
    assert bool(step.graphs) is not changes


def test_float16_is_scaled_and_updated_behind_the_graph():
    settings = {"precision.autocast": "float16", **GRAPH}
    module = module_of(load_catalog(), settings, "train", workload("AdamW", capturable=True, clip=1.0))
    model = net()
    model, optimizer, _ = module.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    step = module.train_step(model, optimizer, nn.functional.cross_entropy)
    losses = [step(batch).item() for _ in range(6) for batch in batches(4)]
    assert sum(losses[-4:]) < sum(losses[:4])
    assert len(step.graphs) == 1


class Asking(nn.Module):
    """As Hugging Face's models: the mask is read, and dropped where it hides nothing, unless a graph is captured."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, inputs, mask):
            return inputs + self.linear(inputs) if mask is None else inputs + self.linear(inputs) * mask

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([self.Block() for _ in range(2)])

    def forward(self, inputs):
        mask = torch.ones(16, device=inputs.device)
        if not torch.cuda.is_current_stream_capturing() and mask.all():
            mask = None
        for block in self.blocks:
            inputs = block(inputs, mask)
        return inputs


class Masked(nn.Module):
    """PyTorch's own layers with a causal mask, whose values they read to choose a kernel."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(8))

    def forward(self, inputs):
        return self.encoder(inputs, self.mask)


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("compiled", [{}, {"compile.scope": "regional"}])
@pytest.mark.parametrize("build", [Asking, Masked])
def test_code_that_asks_whether_a_graph_is_captured_goes_one_way(build, compiled, mode):
    torch.manual_seed(0)
    model = build().cuda()
    reference = copy.deepcopy(model)
    names = {Asking: "Block", Masked: "TransformerEncoderLayer"}
    facts = workload("AdamW", capturable=True).facts
    facts = replace(facts, repeated_blocks=((names[build], 2),))
    train = mode == "train"
    written_for = WrittenFor(
        "model_batch" if train else "", BatchForm("tensor", (), "batch") if train else TENSOR, facts
    )
    module = module_of(load_catalog(), {**GRAPH, **compiled}, mode, written_for)
    inputs = torch.randn(6, 4, 8, 16)
    if mode == "infer":
        step = module.infer_step(module.prepare(model)[0])
        expected = [reference.eval()(one.cuda()) for one in inputs]
    else:
        model, optimizer, _ = module.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.0))
        step = module.train_step(model, optimizer, lambda model, batch: model(batch).square().mean())
        expected = [reference(one.cuda()).square().mean() for one in inputs]
    for one, output in zip(inputs, expected, strict=True):
        torch.testing.assert_close(step(one), output.detach(), rtol=1e-3, atol=1e-3)
    assert len(step.graphs) == 1
