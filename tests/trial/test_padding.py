"""Whether a model takes padding for data, as the inspection finds out."""

import pytest
import torch
from torch import nn

from advisor.recipe.plan import StepPlan
from advisor.step.step import TrainStep
from advisor.trial.inspection import padding_problem


class Reader(nn.Module):
    """The mean over the words of each text: with a mask without its padding."""

    def __init__(self, masks):
        super().__init__()
        self.words, self.head, self.masks = nn.Embedding(50, 16), nn.Linear(16, 3), masks

    def forward(self, texts):
        counts = (texts != 0).float() if self.masks else torch.ones(texts.shape)
        return self.head((self.words(texts) * counts[..., None]).sum(1) / counts.sum(1, keepdim=True))


def batch(length):
    texts = torch.randint(1, 50, (8, length))
    for row, sample in enumerate(texts):
        sample[length - 2 * row :] = 0 if row else sample[length:]
    return texts, torch.arange(8) % 3


@pytest.mark.parametrize("masks", [True, False])
def test_a_model_without_a_mask_takes_padding_for_data(masks):
    torch.manual_seed(0)
    model, batches = Reader(masks), [batch(30), batch(24)]
    step = TrainStep(model, torch.optim.SGD(model.parameters()), nn.CrossEntropyLoss(), StepPlan("train", "cpu"))
    problem = padding_problem(step, batches, 30)
    assert bool(problem) is not masks
    assert model.training
    assert batches[1][0].shape == (8, 24)
