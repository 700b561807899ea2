"""Whether a model takes padding for data, as the inspection finds out."""

import pytest
import torch
from torch import nn

from advisor.inlined.lengths import PadsToMultiple
from advisor.recipe.plan import StepPlan
from advisor.step.step import InferStep, OwnStep, TrainStep
from advisor.trial.inspection import padding_problem


class Reader(nn.Module):
    """The mean over the words of each text: with a mask without its padding. Or the scores of each word."""

    def __init__(self, masks, of_words=False):
        super().__init__()
        self.words, self.head, self.masks, self.of_words = nn.Embedding(50, 16), nn.Linear(16, 3), masks, of_words

    def forward(self, texts):
        counts = (texts != 0).float() if self.masks else torch.ones(texts.shape)
        words = self.words(texts) * counts[..., None]
        return self.head(words if self.of_words else words.sum(1) / counts.sum(1, keepdim=True))


def batch(length):
    texts = torch.randint(1, 50, (8, length))
    for row, sample in enumerate(texts):
        sample[length - 2 * row :] = 0 if row else sample[length:]
    return texts, torch.arange(8) % 3


def training(model):
    return TrainStep(model, torch.optim.SGD(model.parameters()), nn.CrossEntropyLoss(), StepPlan("train", "cpu"))


def inference(model):
    return InferStep(model.eval(), StepPlan("infer", "cpu"), with_target=True)


def problem_of(step):
    batches = [batch(30), batch(24)]
    pads = PadsToMultiple(lambda batch: batch, 30)
    pads.learn(batches)
    problem = padding_problem(step, batches, pads)
    assert batches[1][0].shape == (8, 24)
    return problem


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("step_of", [training, inference])
def test_a_model_without_a_mask_takes_padding_for_data(step_of, masks):
    torch.manual_seed(0)
    model = Reader(masks)
    step, trained = step_of(model), model.training
    assert bool(problem_of(step)) is not masks
    assert model.training is trained


def test_outputs_that_grow_with_the_batch_are_not_padded():
    assert "longer" in problem_of(inference(Reader(masks=True, of_words=True)))


def test_a_step_of_ones_own_is_not_run_to_find_out():
    calls = []
    assert "your own" in problem_of(OwnStep(calls.append, Reader(masks=True), StepPlan("train", "cpu")))
    assert not calls
