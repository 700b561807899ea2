"""Outputs padded to a multiple: the model trains as before and shows the sizes it had."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from facts import cpu_facts, gpu_facts
from model_structures import applied, every_way, inspected, proposed
from proposals import CATALOG
from torch import nn
from torch.nn import functional

from advisor.records import Mode, Numerics
from advisor.step.padding import layers_to_pad, padded_size


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
    shapes = {name: tuple(parameter.shape) for name, parameter in padded.named_parameters()}
    assert shapes["embedding.weight" if tied else "head.weight"] == (504, 16)
    assert (shapes["wide.weight"], shapes["wide.bias"], shapes["back.weight"]) == ((104, 16), (104,), (16, 100))
    for name, parameter in padded.named_parameters():
        if parameter.shape[0] in (104, 504):
            assert not parameter[-3:].any(), f"{name} has rows that are not zero"
            assert optimizers[1].state[parameter]["exp_avg"].shape == parameter.shape
    if tied:
        assert padded.head._parameters["weight"] is padded.embedding._parameters["weight"]


def optimizer_classes():
    """What torch.optim has, without what takes another loop (a closure, sparse gradients) or reads shapes."""
    other = {"Optimizer", "LBFGS", "SparseAdam", "Adafactor", "Muon"}
    found = {name: cls for name, cls in vars(torch.optim).items() if isinstance(cls, type)}
    return [cls for name, cls in found.items() if name not in other and issubclass(cls, torch.optim.Optimizer)]


@pytest.mark.parametrize("optimizer_class", optimizer_classes(), ids=lambda cls: cls.__name__)
def test_optimizers_that_treat_each_element_by_itself_keep_the_rows_at_zero(optimizer_class):
    torch.manual_seed(0)
    models = [Decoder().double()]
    models.append(copy.deepcopy(models[0]))
    decay = {} if optimizer_class is torch.optim.Rprop else {"weight_decay": 0.1}
    optimizers = [optimizer_class(model.parameters(), lr=0.01, **decay) for model in models]
    padded = applied("pad_dims", 8, models[1], optimizers[1])
    assert token_steps(padded, optimizers[1], 4) == pytest.approx(token_steps(models[0], optimizers[0], 4), rel=1e-9)
    assert not padded.embedding._parameters["weight"][501:].any()


@every_way
def test_state_dicts_of_padded_models_have_the_usual_shapes(way):
    plain, model = Decoder(), Decoder()
    shapes = {name: tensor.shape for name, tensor in plain.state_dict().items()}
    padded = way("pad_dims", 64, model)
    assert padded.head._parameters["weight"].shape == (512, 16)
    assert {name: tensor.shape for name, tensor in padded.state_dict().items()} == shapes
    tokens = torch.randint(0, 501, (2, 3))
    for assign in (False, True):
        padded.load_state_dict(copy.deepcopy(plain.state_dict()), assign=assign)
        torch.testing.assert_close(padded(tokens), plain(tokens))
    plain.load_state_dict(padded.state_dict())
    torch.testing.assert_close(padded(tokens), plain(tokens))


def test_padded_models_can_be_copied_pickled_and_cast():
    model = applied("pad_dims", 8, Decoder())
    tokens = torch.randint(0, 501, (2, 3))
    copied, pickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for other in (copied, pickled):
        assert other.head._parameters["weight"] is other.embedding._parameters["weight"]
        assert torch.equal(other(tokens), model(tokens))
    cast = copied.to(torch.bfloat16)
    assert cast(tokens).dtype == torch.bfloat16
    assert cast.head._parameters["weight"] is cast.embedding._parameters["weight"]


def test_a_padded_layer_shows_the_weights_that_count():
    model = applied("pad_dims", 8, Decoder(tied=False))
    x = torch.randn(3, 16)
    assert model.head.weight.shape == (501, 16)
    torch.testing.assert_close(functional.linear(x, model.head.weight, model.head.bias), model.head(x))
    assert (model.head.out_features, model.embedding.num_embeddings) == (501, 501)


@pytest.mark.parametrize("tied", [True, False])
def test_a_padded_layer_shows_the_gradients_that_count(tied):
    torch.manual_seed(0)
    plain = Decoder(tied)
    padded = applied("pad_dims", 8, copy.deepcopy(plain))
    tokens = torch.randint(0, 501, (4, 8))
    for model in (plain, padded):
        model(tokens).square().mean().backward()
    for one, other in ((plain.head, padded.head), (plain.wide, padded.wide), (plain.embedding, padded.embedding)):
        torch.testing.assert_close(other.weight.grad, one.weight.grad)
    torch.testing.assert_close(padded.wide.bias.grad, plain.wide.bias.grad)
    padded.wide.weight.grad.zero_()  # a loop that clips or masks the gradient of a layer
    assert not padded.wide._parameters["weight"].grad.any()


def test_frozen_weights_and_gradients_keep_their_state():
    model = Decoder(tied=False)
    model.wide.requires_grad_(False)
    model(torch.randint(0, 501, (2, 3))).sum().backward()
    gradient = model.head.weight.grad.clone()
    applied("pad_dims", 8, model)
    assert not model.wide._parameters["weight"].requires_grad
    assert model.wide._parameters["weight"].grad is None
    assert torch.equal(model.head._parameters["weight"].grad[:501], gradient)
    token_steps(model, torch.optim.SGD(model.parameters(), lr=0.1))


class Elsewhere(nn.Module):
    """The head's weight is a parameter of its own, too."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 501)
        self.weight = self.head.weight

    def forward(self, x):
        return functional.linear(self.head(x), self.weight.T)


def parametrized():
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(16, 501)))


def tied_bias_of_linears():
    model = nn.Sequential(nn.Linear(16, 501), nn.Linear(501, 501))
    model[1].bias = model[0].bias
    return model


def of_other_classes():
    return nn.ModuleList([type("MyLinear", (nn.Linear,), {})(16, 501), nn.Bilinear(4, 4, 501)])


@pytest.mark.parametrize("build", [Elsewhere, parametrized, tied_bias_of_linears, of_other_classes])
def test_weights_that_others_use_are_not_padded(build):
    model = build()
    assert layers_to_pad(model, 8) == []
    applied("pad_dims", 8, model)
    assert all(parameter.shape[0] != 504 for parameter in model.parameters())


@pytest.mark.parametrize(
    ("size", "multiple", "padded"),
    [(50257, 8, 50264), (50257, 64, 50304), (1000, 8, 1000), (1000, 64, 1024), (10, 8, 10), (57, 8, 64), (70, 64, 70)],
)
def test_a_size_grows_by_an_eighth_at_most(size, multiple, padded):
    assert padded_size(size, multiple) == padded


def test_a_padded_model_can_be_compiled_and_traced():
    model = applied("pad_dims", 8, Decoder())
    tokens = torch.randint(0, 501, (2, 3))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), model(tokens))
    traced = torch.fx.symbolic_trace(model)
    torch.testing.assert_close(traced(tokens), model(tokens))


def test_padding_is_proposed_where_outputs_are_off_the_multiple():
    facts = gpu_facts(capability=(9, 0), paddable_outputs=((8, 1, 50257), (64, 1, 50257)))
    assert proposed("pad_dims", facts) == [8, 64]
    assert "50,257 outputs" in CATALOG["pad_dims"].why(facts, 64)
    assert "no linear layer" in proposed("pad_dims", gpu_facts(capability=(9, 0)))
    old = gpu_facts(capability=(6, 1), paddable_outputs=((8, 1, 50257),))
    assert "6.1 has no tensor cores" in proposed("pad_dims", old)
    adafactor = replace(facts.workload, optimizer=replace(facts.workload.optimizer, name="Adafactor"))
    assert "rows of zeros" in proposed("pad_dims", replace(facts, workload=adafactor))
    assert "needs a CUDA GPU" in proposed("pad_dims", cpu_facts())
    assert CATALOG.conflict({"model.pad_to_multiple": 8, "optimizer.state": "adafactor"})
    assert CATALOG.conflict({"model.pad_to_multiple": 8, "precision.quantize": "int8wo"})
    assert CATALOG["pad_dims"].numerics_of(8, Mode.TRAIN) is Numerics.CLOSE
    assert CATALOG["pad_dims"].numerics_of(8, Mode.INFER) is Numerics.CLOSE
    strange = replace(facts.workload, optimizer=replace(facts.workload.optimizer, builtin=False))
    assert "of another package" in proposed("pad_dims", replace(facts, workload=strange))


def test_outputs_to_pad_are_facts():
    tokens = torch.randint(0, 501, (2, 3))
    assert inspected(Decoder(), tokens).paddable_outputs == ((8, 2, 501), (64, 1, 501))
    assert inspected(nn.Linear(3, 1020), torch.randn(2, 3)).paddable_outputs == ((8, 1, 1020),)
    assert inspected(nn.Linear(3, 1024), torch.randn(2, 3)).paddable_outputs == ()


def test_checkpoints_of_an_optimizer_over_padded_weights_go_both_ways():
    def train(model, optimizer):
        for seed in range(2):
            optimizer.zero_grad()
            model(torch.randn(4, 16, generator=torch.Generator().manual_seed(seed))).square().mean().backward()
            optimizer.step()

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(16, 15), nn.Tanh(), nn.Linear(15, 16))
    model = copy.deepcopy(plain)
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.01) for each in (plain, model)]
    applied("pad_dims", 8, model, optimizers[1])
    assert model[0]._parameters["weight"].shape == (16, 16)
    train(plain, optimizers[0])
    model.load_state_dict(plain.state_dict())
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    train(plain, optimizers[0])
    train(model, optimizers[1])
    saved, expected = optimizers[1].state_dict()["state"], optimizers[0].state_dict()["state"]
    for key, state in expected.items():
        torch.testing.assert_close(saved[key], state)
    torch.testing.assert_close(dict(model.state_dict()), dict(plain.state_dict()))
