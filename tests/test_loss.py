from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from advisor.runtime.loss import default_loss, describe_loss, main_output, takes_model


def of_model(model, batch): ...
def of_net(net, data): ...
def of_batch(whatever, batch): ...
def of_annotated(m: nn.Module, b): ...
def of_subclass(m: nn.Sequential, b): ...
def of_output(output, target): ...
def of_unknown_annotation(output: NoSuchClass, target): ...  # noqa: F821
def of_nothing(): ...


class Criterion:
    def __call__(self, model, inputs): ...


class ModelLoss(nn.Module):
    def forward(self, model, batch): ...


@pytest.mark.parametrize(
    ("loss", "takes"),
    [
        (of_model, True),
        (of_net, True),
        (of_batch, True),
        (of_annotated, True),
        (of_subclass, True),
        (lambda model, b: None, True),
        (Criterion(), True),
        (functools.partial(of_model), True),
        (of_output, False),
        (of_unknown_annotation, False),
        (of_nothing, False),
        (lambda a, b: None, False),
        (functional.cross_entropy, False),
        (nn.CrossEntropyLoss(), False),
        (ModelLoss(), False),  # a module is called with output and target
        (print, False),
        (max, False),  # without a signature
    ],
)
def test_the_two_forms_are_told_apart(loss, takes):
    assert takes_model(loss) is takes


def test_losses_as_a_person_reads_them():
    assert describe_loss(None) == "none"
    assert describe_loss(nn.CrossEntropyLoss()) == "CrossEntropyLoss"
    assert describe_loss(of_output) == "of_output"
    assert describe_loss(Criterion()) == "Criterion"
    assert describe_loss(functools.partial(of_output)) == "partial"


# --- the loss of a workload that brings none ------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("wrap", [lambda loss: {"loss": loss}, lambda loss: SimpleNamespace(loss=loss)])
def test_the_models_own_loss(wrap):
    loss = torch.tensor(3.0)
    assert default_loss(wrap(loss), None) is loss


def test_whole_numbers_are_classes():
    scores, labels = torch.randn(4, 10), torch.randint(10, (4,))
    assert default_loss(scores, labels) == functional.cross_entropy(scores, labels)


def test_classes_of_pixels():
    scores, labels = torch.randn(2, 5, 6, 7), torch.randint(5, (2, 6, 7))
    assert default_loss({"out": scores, "aux": scores + 1}, labels) == functional.cross_entropy(scores, labels)


def test_classes_of_tokens_have_their_scores_last():
    scores, labels = torch.randn(2, 6, 50), torch.randint(50, (2, 6))
    expected = functional.cross_entropy(scores.reshape(12, 50), labels.reshape(12))
    assert default_loss(scores, labels) == pytest.approx(expected.item())


def test_targets_of_the_outputs_shape_are_a_regression():
    output, target = torch.randn(4, 3), torch.randn(4, 3)
    assert default_loss(output, target) == functional.mse_loss(output, target)


@pytest.mark.parametrize("target", [None, torch.randn(7), "text", torch.randint(3, (7, 1))])
def test_else_the_mean_square_of_the_outputs(target):
    output = torch.randn(4, 3)
    assert default_loss(output, target) == pytest.approx(output.square().mean().item())


def test_the_main_output_is_the_first_floating_point_tensor():
    scores = torch.randn(2)
    assert main_output((torch.tensor([1]), [scores, torch.randn(2)])) is scores


def test_an_output_without_numbers_says_so():
    with pytest.raises(TypeError, match="returned str, which holds no floating-point tensor"):
        main_output("text")
