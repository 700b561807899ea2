"""The forms of batches as a trial finds them, and steps of exported Python files that are written by them."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from exported_module import batches, model_of, module_of
from facts import gpu_facts
from graph_stand_in import record_on_cpu
from torch import nn

from advisor.python.file import WrittenFor
from advisor.recipe.catalog import load_catalog
from advisor.recipe.plan import StepPlan
from advisor.records import BatchForm
from advisor.step.batch import SplitBatch
from advisor.step.step import OwnStep, TrainStep
from advisor.trial.batch_form import batch_form_of, form_of_batch, place_of_loss, with_own_loss

CATALOG = load_catalog()
CE = nn.functional.cross_entropy


class Named(nn.Module):
    """A model with keyword arguments, which returns its loss if it is given labels."""

    def __init__(self):
        super().__init__()
        self.net = model_of()

    def forward(self, images, labels=None):
        output = self.net(images)
        return output if labels is None else {"loss": CE(output, labels)}


def model_with(forward):
    """A class of models around the net of ``model_of``."""
    return type("Model", (Named,), {"forward": forward})


class Data(SimpleNamespace):
    """A batch like PyTorch Geometric's."""

    def to(self, device):
        return self


def form(kind, target, *inputs):
    return BatchForm(kind, inputs, target)


OfAttribute = model_with(lambda self, images, labels: SimpleNamespace(loss=CE(self.net(images), labels)))
Scalar = model_with(lambda self, images, labels: CE(self.net(images), labels))
OfTuple = model_with(lambda self, images, labels: (scores := self.net(images), CE(scores, labels)))
LossFirst = model_with(lambda self, images, labels=None: (CE(scores := self.net(images), labels), scores))
Several = model_with(lambda self, images, labels: {"one": CE(self.net(images), labels), "two": self.net(images).mean()})
Sum = model_with(lambda self, left, right: self.net(left + right))
Whole = model_with(lambda self, batch: self.net(torch.stack(batch)))
# Batches of images and labels.
PAIR, NAMES, WITH_IDS = (
    lambda x, y: (x, y),
    lambda x, y: {"images": x, "labels": y},
    lambda x, y: {"images": x, "labels": y, "ids": 0 * y},
)
PARTS = form("list", "batch[1]", "batch[0]")
TWO_TARGETS = form("list", "batch[1], batch[2]", "batch[0]")
ATTRIBUTES = form("object", "batch.y", "left=batch.left", "right=batch.right")
IMAGES, LABELS = 'batch["images"]', 'batch["labels"]'
OF_NAMES = form("mapping", LABELS, f"images={IMAGES}")
BY_NAME = form("mapping", f'labels={LABELS}, ids=batch["ids"]', f"images={IMAGES}")
# A model, its loss, a batch of images and labels, and the form that the trial finds of it.
FORMS = {
    "pair": (model_of, CE, PAIR, PARTS),
    "listed inputs": (Sum, CE, lambda x, y: ([x, x], y), form("nested", "batch[1]", "*batch[0]")),
    "named inputs": (Sum, CE, lambda x, y: ({"left": x, "right": x}, y), form("nested", "batch[1]", "**batch[0]")),
    "more than tensors": (model_of, nn.CrossEntropyLoss(), lambda x, y: [x, y, "id"], replace(PARTS, kind="nested")),
    "several targets": (model_of, lambda output, y, z: CE(output, y + z), lambda x, y: (x, y, 0 * y), TWO_TARGETS),
    "targets by name": (Named, lambda output, labels, ids: CE(output, labels + ids), WITH_IDS, BY_NAME),
    "output and batch": (model_of, lambda output, batch: CE(output, batch[1]), PAIR, replace(PARTS, target="batch")),
    "output alone": (model_of, lambda output: output.square().mean(), lambda x, y: x, form("tensor", "", "batch")),
    "whole list": (Whole, lambda output: output.square().mean(), lambda x, y: list(x), form("list", "", "batch")),
    "names": (Named, CE, NAMES, OF_NAMES),
    "one input": (model_of, CE, NAMES, form("mapping", LABELS, IMAGES)),
    "attributes": (Sum, CE, lambda x, y: Data(left=x, right=0 * x, y=y), ATTRIBUTES),
    "model_batch": (model_of, lambda model, batch: CE(model(batch[0]), batch[1]), PAIR, form("list", "batch")),
    "model and parts": (model_of, lambda model, x, y: CE(model(x), y), PAIR, form("list", "*batch")),
    "own": (Named, None, NAMES, form("mapping", 'output["loss"]', "**batch")),
    "own of parts": (OfAttribute, None, PAIR, form("list", "output.loss", "*batch")),
    "own scalar": (Scalar, None, PAIR, form("list", "output", "*batch")),
    "own of a tuple": (OfTuple, None, PAIR, form("list", "output[1]", "*batch")),
    "own, the first": (LossFirst, None, PAIR, form("list", "output[0]", "*batch")),
    "own, added up": (Several, None, PAIR, form("list", "sum(output.values())", "*batch")),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("settings", [{}, {"step.cuda_graph": True}], ids=["eager", "graph"])
def test_each_form_of_a_loss_and_of_a_batch(name, settings, monkeypatch):
    """As the trial's step computes them; a graph on the CPU is a stand-in that records operators."""
    record_on_cpu(monkeypatch)
    make, loss, wrapped, found = FORMS[name]
    data = [wrapped(*batch) for batch in batches(8)]
    torch.manual_seed(0)
    model = make()
    reference = copy.deepcopy(model)
    trial = TrainStep(reference, torch.optim.SGD(reference.parameters(), lr=0.05), loss, StepPlan("train", "cpu"))
    batch_form = batch_form_of(trial, data[0])
    if loss is None:
        batch_form = with_own_loss(batch_form, place_of_loss(copy.deepcopy(trial).forward(data[0])))
    assert batch_form == found
    module = module_of(CATALOG, settings, "train", WrittenFor(trial.call.form, batch_form, gpu_facts().workload))
    model, optimizer, _ = module.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
    step = module.train_step(model, optimizer, loss)
    assert [step(batch).item() for batch in data] == pytest.approx([trial(batch).item() for batch in data], rel=2e-5)
    assert not settings or found.kind == "object" or len(step.graphs) == 1


X, Y, Z = torch.ones(2, 3), torch.ones(2), torch.zeros(2)
LISTED = [X, Z]


@pytest.mark.parametrize(
    ("batch", "split", "found"),
    [
        ((X, Z, Y), SplitBatch((X, Z), {}, Y), form("list", "batch[2]", "batch[0]", "batch[1]")),
        ((X, Y, Z), SplitBatch((X,), {}, (Y, Z)), form("list", "(batch[1], batch[2])", "batch[0]")),
        (LISTED, SplitBatch((LISTED,), {}, LISTED), form("list", "batch", "batch")),
        (whole := Data(x=X), SplitBatch((whole,), {}, whole), form("object", "batch", "batch")),
    ],
)
def test_the_form_of_a_batch_by_its_split(batch, split, found):
    assert form_of_batch(batch, split, "target") == found


def test_a_number_behind_scores_that_a_target_is_for_is_a_part_of_the_loss():
    batch, scores, number = form("list", "batch[1]", "batch[0]"), torch.ones(2, 3), torch.ones((), requires_grad=True)
    assert with_own_loss(batch, place_of_loss((scores, number))) is None
    assert with_own_loss(batch, place_of_loss((number, scores))) == replace(batch, target="output[0]")
    assert place_of_loss(scores) == ""


def test_a_step_of_ones_own_gets_the_batch_as_it_is():
    step = OwnStep(print, model_of(), StepPlan("train", "cpu"))
    assert batch_form_of(step, NAMES(X, Y)) == form("mapping", "", "batch")
    assert batch_form_of(step, None) is None
