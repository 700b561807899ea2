"""A captured step gives the loop copies of the tensors that it keeps, which no later replay overwrites."""

import pytest
import torch
from graphed_steps import Net, batches, graphed, net, of_model, plain, sgd
from torch import nn


class Logging(nn.Module):
    """A model that keeps a new dictionary of figures, and a feature, of each call."""

    def __init__(self):
        super().__init__()
        self.inner, self.figures = Net(), {}

    def forward(self, x):
        output = self.inner(x)
        self.figures = {"mean": output.mean().detach(), "parts": [output.std().detach()]}
        self.feature = output.detach()
        return output


class Criterion:
    """A loss that keeps its parts in an attribute, which it does not read."""

    def __call__(self, output, target):
        value = nn.functional.cross_entropy(output, target)
        self.log = {"entropy": value.detach()}
        return value


def of_the_model():
    logging = Logging()
    return logging, of_model, lambda: (logging.figures["mean"], logging.figures["parts"][0], logging.feature)


def of_the_criterion():
    criterion = Criterion()
    return net(), criterion, lambda: (criterion.log["entropy"],)


def of_a_closure():
    figures = {}

    def loss(model, batch):
        nonlocal figures
        value = of_model(model, batch)
        figures = {"loss": value.detach()}
        return value

    return net(), loss, lambda: (figures["loss"],)


FIGURES = {}


def of_the_module():
    def loss(model, batch):
        global FIGURES  # noqa: PLW0603
        value = of_model(model, batch)
        FIGURES = {"loss": value.detach()}
        return value

    return net(), loss, lambda: (FIGURES["loss"],)


def of_a_dictionary_that_stays():
    figures = {}

    def loss(model, batch):
        value = of_model(model, batch)
        figures["loss"] = value.detach()
        return value

    return net(), loss, lambda: (figures["loss"],)


@pytest.mark.parametrize(
    "make", [of_the_model, of_the_criterion, of_a_closure, of_the_module, of_a_dictionary_that_stays]
)
def test_a_loop_may_keep_what_it_finds_after_each_step(make):
    kept = []
    for is_captured in (False, True):
        torch.manual_seed(0)
        model, loss, figures = make()
        of_batch = loss if not isinstance(loss, Criterion) else lambda m, b, loss=loss: loss(m(b[0]), b[1])
        optimizer = sgd(model.parameters())
        step = graphed(model, optimizer, loss) if is_captured else plain(model, optimizer, of_batch)
        found = []
        for batch in batches():
            step(batch)
            found.append(figures())
        kept.append(found)
    assert step.graph.captures == 1
    for ours, plains in zip(*kept, strict=True):
        torch.testing.assert_close(plains, ours, rtol=1e-4, atol=1e-6)
