"""Losses that nobody gave or of an unusual form: a number that the model returns, and a loss with a length."""

import pytest
import torch
from torch.nn import functional

from advisor.step.loss import default_loss

INPUTS, CLASSES = torch.randn(8, 4), torch.arange(8) % 3


@pytest.mark.parametrize("make", [lambda scores: scores, lambda scores: {"boxes": scores, "steps": torch.tensor(2.0)}])
def test_without_a_loss_what_a_model_returns_as_numbers_is_its_own(make):
    score = torch.tensor(-3.0, requires_grad=True)
    assert default_loss(make(score), None).item() == -3.0


def test_without_a_loss_a_number_in_a_tuple_is_the_models_own():
    loss, scores = torch.tensor(-3.0, requires_grad=True), torch.randn(8, 3, requires_grad=True)
    assert default_loss((loss, scores), CLASSES) is loss
    assert default_loss((scores, loss), [INPUTS, CLASSES]) is loss, "the model took the whole batch"
    assert default_loss((scores, loss), CLASSES) == functional.cross_entropy(scores, CLASSES), "a part of the loss"
