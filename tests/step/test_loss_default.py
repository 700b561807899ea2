"""Losses that nobody gave or of an unusual form: a number that the model returns, and a loss with a length."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from advisor.recipe.plan import StepPlan
from advisor.step.loss import default_loss
from advisor.step.step import TrainStep

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


class WithoutParts(nn.Module):
    """A loss with a length that is zero, or that nobody can ask for, as behind the wrapper of torch.compile."""

    def __init__(self, length):
        super().__init__()
        self.length = length

    def __len__(self):
        if self.length is None:
            raise TypeError("it has no length")
        return self.length

    def forward(self, output, target):
        return functional.cross_entropy(output, target, label_smoothing=0.5)


@pytest.mark.parametrize("length", [0, None])
def test_a_loss_is_used_whatever_its_length_is(length):
    loss, batch = WithoutParts(length), (torch.randn(6, 4), torch.arange(6) % 3)
    model = nn.Linear(4, 3)
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.0), loss, StepPlan(mode="train", device="cpu"))
    torch.testing.assert_close(step(batch), loss(model(batch[0]), batch[1]).detach())
