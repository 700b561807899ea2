"""Captured steps that make tensors on the host, or whose loss asks the host, against plain loops."""

import pytest
import torch
from gpu_steps import CAPTURED, batches, by_api, net, sgd
from graphed_steps import plain
from torch import nn

pytestmark = pytest.mark.gpu


class Translator(nn.Module):
    """A mask that is made on the host in each step, in a model that asks whether it is the causal one."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.layers = nn.Transformer(32, 4, 1, 1, 64, dropout=0.0, batch_first=True)
        self.last = nn.Linear(32, 50)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1]).to(source.device)
        padding = source == 0
        hidden = self.layers(
            self.embed(source),
            self.embed(target),
            tgt_mask=mask,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return self.last(hidden)


def test_a_transformer_that_makes_its_mask_on_the_host_is_captured_with_it_made_on_the_gpu():
    def translated(model, batch):
        ids = batch.cuda()
        return nn.functional.cross_entropy(model(ids, ids).flatten(0, 1), ids.flatten())

    generator = torch.Generator().manual_seed(3)
    data = [torch.randint(0, 50, (4, 9), generator=generator).index_fill_(1, torch.tensor([8]), 0) for _ in range(8)]
    losses, made = [], []
    for settings in (None, CAPTURED | {"step.create_on_device": True}):
        torch.manual_seed(0)
        model = Translator().cuda()
        optimizer = sgd(model.parameters())
        if settings is None:
            step = plain(model, optimizer, translated)
        else:
            model, optimizer, step = by_api(settings, model, optimizer, translated)
        losses.append([step(batch).item() for batch in data])
        made.append(step)
    assert losses[1] == pytest.approx(losses[0], rel=2e-3)
    assert made[1].captured


@pytest.mark.parametrize("scope", ["model", "with_loss"])
def test_compiled_code_makes_its_tensors_on_the_gpu_too(scope, fresh_compiler):
    def contrasted(model, batch):
        output = model(batch[0].cuda())
        target = torch.cat([torch.arange(1, 3), torch.arange(1)]).repeat(3)[: len(output)]
        return nn.functional.cross_entropy(output, target.to(output.device))

    losses = []
    for settings in (
        None,
        CAPTURED | {"step.create_on_device": True, "compile.scope": scope, "compile.mode": "default"},
    ):
        model = net()
        optimizer = sgd(model.parameters())
        if settings is None:
            step = plain(model, optimizer, contrasted)
        else:
            model, optimizer, step = by_api(settings, model, optimizer, contrasted)
        losses.append([step(batch).item() for batch in batches()])
    assert losses[1] == pytest.approx(losses[0], rel=5e-3)
    assert step.captured
