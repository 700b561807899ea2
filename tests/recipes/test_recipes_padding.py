"""Outputs padded to a multiple: the model trains as before and shows the sizes it had."""

import copy
import pickle

import pytest
import torch
from model_structures import applied, every_way, inspected
from torch import nn
from torch.nn import functional


class Decoder(nn.Module):
    """Sizes off every multiple; the vocabulary's weight is shared where asked."""

    def __init__(self, tied=True):
        super().__init__()
        self.embedding = nn.Embedding(501, 16, padding_idx=0)
        self.wide, self.back = nn.Linear(16, 100), nn.Linear(100, 16)
        self.head = nn.Linear(16, 501, bias=not tied)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.head(x + self.back(torch.relu(self.wide(x))))


def token_steps(model, optimizer, steps=3):
    generator = torch.Generator().manual_seed(2)
    losses = []
    for _ in range(steps):
        tokens = torch.randint(0, 501, (4, 8), generator=generator)
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        assert logits.shape == (4, 7, 501)
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@every_way
@pytest.mark.parametrize("tied", [True, False])
def test_a_padded_model_trains_as_before(way, tied):
    torch.manual_seed(0)
    models = [Decoder(tied).double()]
    models.append(copy.deepcopy(models[0]))
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1) for m in models]
    # The second has moments already when it is padded.
    expected = token_steps(models[0], optimizers[0], 2) + token_steps(models[0], optimizers[0], 3)
    found = token_steps(models[1], optimizers[1], 2)
    padded = way("pad_dims", 8, models[1], optimizers[1])
    found += token_steps(padded, optimizers[1], 3)
    assert found == pytest.approx(expected, rel=1e-9)
    assert (padded.head.padded_features, padded.wide.padded_features) == (504, 104)
    assert type(padded.back) is nn.Linear
    for (name, value), (plain_name, plain) in zip(padded.named_parameters(), models[0].named_parameters(), strict=True):
        assert name == plain_name
        torch.testing.assert_close(value, plain)
        torch.testing.assert_close(value.grad, plain.grad)


def test_padded_models_can_be_copied_pickled_and_cast():
    model = applied("pad_dims", 8, Decoder())
    tokens = torch.randint(0, 501, (2, 3))
    copied, pickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for other in (copied, pickled):
        assert other.head.weight is other.embedding.weight
        assert torch.equal(other(tokens), model(tokens))
    assert copied.to(torch.bfloat16)(tokens).dtype == torch.bfloat16


@pytest.mark.compile
def test_a_padded_model_can_be_compiled_and_traced():
    model = applied("pad_dims", 8, Decoder())
    tokens = torch.randint(0, 501, (2, 3))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), model(tokens))
    traced = torch.fx.symbolic_trace(model)
    torch.testing.assert_close(traced(tokens), model(tokens))


def test_outputs_to_pad_are_facts():
    tokens = torch.randint(0, 501, (2, 3))
    assert inspected(Decoder(), tokens).paddable_outputs == ((8, 2, 501), (64, 1, 501))
    assert inspected(nn.Linear(3, 1020), torch.randn(2, 3)).paddable_outputs == ((8, 1, 1020),)
    assert inspected(nn.Linear(3, 1024), torch.randn(2, 3)).paddable_outputs == ()
