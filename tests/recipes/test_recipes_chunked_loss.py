"""The loss of a large vocabulary in chunks: the same loss and gradients, without a tensor of all scores."""

import copy
import pickle

import pytest
import torch
from facts import gpu_facts
from model_structures import applied, every_way, inspected
from proposals import CATALOG
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.errors import RefusedError
from advisor.records import Skip
from advisor.trial.measurement.probe import sample_of

WORDS, WIDTH, BATCH, LENGTH = 16_384, 4, 3, 11


class Decoder(nn.Module):
    """A language model of the least size; its head's weight may be frozen."""

    def __init__(self, *, bias=True, learns=True):
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=bias)
        self.head.weight.requires_grad_(learns)
        self.unused = nn.ReLU()

    def forward(self, tokens):
        return self.head(self.embedding(tokens).tanh())


class WithLoss(Decoder):
    """A model that returns its scores and their loss, as nanoGPT does."""

    def forward(self, tokens, targets):
        scores = super().forward(tokens)
        return scores, functional.cross_entropy(scores.view(-1, scores.size(-1)), targets.view(-1), ignore_index=-1)


def batch(ignored=-100):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator)
    targets = torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator)
    targets[0, 3:] = ignored
    return tokens, targets


cross_entropy = nn.CrossEntropyLoss()
CHUNKED = {
    "rows": lambda scores, targets: functional.cross_entropy(scores.view(-1, WORDS), targets.view(-1)),
    "a module": lambda scores, targets: cross_entropy(scores.reshape((-1, WORDS)).contiguous(), targets.flatten()),
    "a sum": lambda scores, targets: functional.cross_entropy(
        scores.flatten(0, 1), targets.flatten().clamp(min=0), reduction="sum", ignore_index=0
    ),
    "classes second": lambda scores, targets: cross_entropy(scores.transpose(1, 2), targets),
    "shifted": lambda scores, targets: cross_entropy(
        scores[..., :-1, :].contiguous().view(-1, scores.shape[-1]), targets[..., 1:].flatten().to(scores.device)
    ),
    "cut": lambda scores, targets: cross_entropy(scores[:, 1:].reshape(-1, scores.size(-1)), targets[:, 1:].flatten()),
}
WHOLE = {
    "smoothed": lambda scores, targets: functional.cross_entropy(
        scores.view(-1, WORDS), targets.view(-1), label_smoothing=0.1
    ),
    "weighted": lambda scores, targets: functional.cross_entropy(
        scores.transpose(2, 1), targets, torch.linspace(0, 1, WORDS, dtype=torch.float64)
    ),
    "unreduced": lambda scores, targets: functional.cross_entropy(
        scores.flatten(0, 1), targets.flatten(), reduction="none"
    ).mean(),
    "scaled": lambda scores, targets: cross_entropy((scores / 2 * 3).transpose(1, 2), targets),
    "some classes": lambda scores, targets: cross_entropy(scores[..., :WIDTH].flatten(0, 1), targets.flatten() % WIDTH),
    "something else": lambda scores, targets: functional.mse_loss(scores.softmax(-1), torch.sigmoid(scores).detach()),
}


class Sizes(TorchDispatchMode):
    """The most elements of a tensor that an operation returned."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else (result,):
            self.most = max(self.most, one.numel() if isinstance(one, torch.Tensor) else 0)
        return result


def gradients_of(model, loss):
    tokens, targets = batch()
    with Sizes() as sizes:
        value = loss(model(tokens), targets)
        value.backward()
    return value.detach(), [parameter.grad for parameter in model.parameters()], sizes.most


def twins(way, make=Decoder, **options):
    torch.manual_seed(0)
    model = make(**options).double()
    return model, way("chunked_loss", True, copy.deepcopy(model))


@every_way
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"learns": False}])
@pytest.mark.parametrize("kind", CHUNKED)
def test_loss_and_gradients_are_the_same_without_a_tensor_of_all_scores(kind, options, way):
    plain, chunked = (gradients_of(model, CHUNKED[kind]) for model in twins(way, **options))
    torch.testing.assert_close(chunked[:2], plain[:2], rtol=1e-12, atol=1e-14)
    assert plain[2] >= BATCH * (LENGTH - 1) * WORDS > 2 * chunked[2]


@pytest.mark.parametrize("kind", WHOLE)
def test_what_else_is_done_to_scores_is_done_to_all_of_them(kind):
    plain, chunked = (gradients_of(model, WHOLE[kind]) for model in twins(applied))
    torch.testing.assert_close(chunked[:2], plain[:2], rtol=1e-12, atol=1e-14)


def test_a_model_may_compute_its_loss_itself():
    tokens, targets = batch(ignored=-1)
    values = []
    for model in twins(applied, WithLoss):
        scores, loss = model(tokens, targets)
        loss.backward()
        values.append((loss.detach(), model.head.weight.grad, scores.argmax(-1)))
    torch.testing.assert_close(*values, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel", "T5ForConditionalGeneration"])
def test_language_models_of_hugging_face_need_no_other_change(name):
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, name)
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    if name.startswith("T5"):
        small = {"d_model": 8, "d_kv": 8, "d_ff": 8, "num_layers": 1, "num_heads": 1, "decoder_start_token_id": 0}
    torch.manual_seed(0)
    plain = kind(kind.config_class(vocab_size=WORDS, **small)).double()
    for module in plain.modules():
        module.p = 0.0  # of dropout
        module.dropout = (
            0.0 if isinstance(getattr(module, "dropout", None), float) else getattr(module, "dropout", None)
        )
    chunked = applied("chunked_loss", True, copy.deepcopy(plain))
    chunked.tie_weights()
    tokens, targets = batch()
    losses = []
    for model in (plain.train(), chunked.train()):
        losses.append(model(input_ids=tokens, labels=targets).loss)
        losses[-1].backward()
    torch.testing.assert_close(losses[1].double(), losses[0].double(), rtol=1e-6, atol=0)
    for one, other in zip(chunked.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-6, atol=1e-7)


def test_evaluation_and_copies_get_a_tensor():
    model = applied("chunked_loss", True, Decoder())
    with torch.no_grad():
        expected = model(batch()[0])
    assert type(expected) is torch.Tensor
    assert sample_of(model(batch()[0])) == sample_of(expected), "a trial compares what the model returns in a step"
    assert torch.equal(pickle.loads(pickle.dumps(model)).eval()(batch()[0]), expected)
    assert list(model.state_dict()) == list(Decoder().state_dict())


def test_only_a_large_last_layer_of_pytorchs_own_is_changed():
    assert inspected(Decoder(), batch()[0]).large_head == WORDS
    for layers in ([nn.Linear(2, WORDS), nn.Linear(WORDS, 2)], [nn.Linear(2, WORDS - 1)]):
        model = nn.Sequential(*layers)
        assert inspected(model, torch.rand(3, 2)).large_head == 0
        with pytest.raises(RefusedError, match="last layer"):
            applied("chunked_loss", True, model)
    layers[0].parameters = lambda: []  # as an event function of torchdiffeq has its own
    assert inspected(nn.Sequential(*layers), torch.rand(3, 2)).large_head == 0
    assert isinstance(CATALOG["chunked_loss"].candidates(gpu_facts()), Skip)
    assert CATALOG["chunked_loss"].candidates(gpu_facts(large_head=WORDS)) == [True]
    assert CATALOG.conflict({"loss.chunked": True, "parallel.strategy": "fully_shard"})
    assert CATALOG.conflict({"loss.chunked": True, "precision.float8": "rowwise"})
    assert CATALOG.conflict({"loss.chunked": True, "step.cuda_graph": "around_loss"})
    assert not CATALOG.conflict({"loss.chunked": True, "parallel.strategy": "ddp", "model.pad_to_multiple": 8})
