"""Attention masks that mask nothing: left out of the batches that a loader collates."""

from collections import UserDict

import pytest
import torch
from exported_module import module_of
from facts import gpu_facts, loader_facts
from loaders import applied
from proposals import CATALOG, proposed, reason
from torch import nn
from torch.utils.data import DataLoader

from advisor.inlined.masks import without_empty_masks
from advisor.python.step import WrittenFor
from advisor.recipe import Recipe
from advisor.records import BatchForm, TargetSpec
from advisor.step.tuning import Tuning
from advisor.trial.inspection import inspect_loop
from advisor.trial.timed_loop import data_of
from advisor.workloads.normalise import normalise

DROPPED = {"attention.empty_masks": "dropped"}
ONES, ZEROS, PADDED = torch.ones(2, 4), torch.zeros(2, 4), torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0]])
EMPTY = [("attention_mask", ONES.bool()), ("attention_mask", ZEROS[None, None]), ("src_key_padding_mask", ZEROS.bool())]
OTHERS = [("attention_mask", PADDED), ("attention_mask", 2 * ONES.long()), ("labels", ONES), ("padding_mask", ONES)]


class Scores(nn.Linear):
    def forward(self, input_ids, attention_mask=None):
        return super().forward(input_ids if attention_mask is None else input_ids * attention_mask)[:, 0]


def batches_of(*masks):
    return [{"input_ids": torch.rand(2, 4), "attention_mask": mask.clone(), "labels": torch.rand(2)} for mask in masks]


@pytest.mark.parametrize(("masks", "go"), [(EMPTY, True), (OTHERS, False)])
def test_only_a_mask_that_masks_nothing_is_left_out(masks, go):
    for name, mask in masks:
        batch = UserDict({"input_ids": ONES, name: mask})
        found, _ = without_empty_masks((batch, 1))
        assert ((name not in found), name in batch, type(found)) == (go, True, UserDict)


WAYS = {
    "apply": lambda loader: applied("attention_mask", "dropped", loader),
    "prepare": lambda loader: Tuning(DROPPED).prepare(Scores(4, 1), loader)[1],
    "file": lambda loader: module_of(CATALOG, DROPPED, "infer").prepare(Scores(4, 1), None, loader)[2],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("workers", [0, 1])
def test_each_batch_is_looked_at(monkeypatch, way, workers):
    monkeypatch.setattr(type(CATALOG["attention_mask"]), "devices", Recipe.devices)
    batches = batches_of(ONES, ONES, PADDED, ONES)
    samples = [{name: one[row] for name, one in batch.items()} for batch in batches for row in (0, 1)]
    found = list(WAYS[way](DataLoader(samples, batch_size=2, num_workers=workers)))
    assert ["attention_mask" in batch for batch in found] == [False, False, True, False]
    assert torch.equal(found[2]["attention_mask"], PADDED)


def padded(samples):
    texts = nn.utils.rnn.pad_sequence(samples, batch_first=True)
    return {"input_ids": texts, "attention_mask": (texts != 0).long()}


def test_masks_are_looked_at_once_batches_are_padded():
    lengths = [20] * 8 + [50, 7, 9, 3] * 8 + [32] * 4
    loader = DataLoader([torch.randint(3, 99, (length,)) for length in lengths], batch_size=4, collate_fn=padded)
    module = module_of(CATALOG, {**DROPPED, "data.pad_to_multiple": 16}, "infer")
    found = list(module.prepare(nn.Linear(1, 1), None, loader)[2])
    assert [batch["input_ids"].shape[1] for batch in found] == [32] * 2 + [50] * 8 + [32]
    assert ["attention_mask" in batch for batch in found] == [True] * 10 + [False]


@pytest.mark.parametrize(("masks", "count"), [((ONES, ONES), 1), ((ONES, PADDED), 0)])
def test_it_is_proposed_where_no_mask_of_the_first_batches_says_anything(masks, count):
    loop = normalise((Scores(4, 1), batches_of(*masks)[0], nn.MSELoss()), TargetSpec("t:build", "."))
    assert inspect_loop(loop, torch.device("cpu"), batches_of(*masks)).empty_masks == count
    assert ("attention_mask" in data_of(loop, {}), "attention_mask" in data_of(loop, DROPPED)) == (True, False)
    facts = gpu_facts(empty_masks=count)
    assert proposed("attention_mask", facts) == ["dropped"] if count else reason("attention_mask", facts)
    fixed = gpu_facts(empty_masks=1, loader=loader_facts(copy_problem="no DataLoader"))
    assert reason("attention_mask", fixed) == "no DataLoader"


def test_an_exported_step_takes_batches_without_the_mask():
    form = BatchForm("mapping", ('input_ids=batch["input_ids"]', 'attention_mask=batch["attention_mask"]'))
    step = module_of(CATALOG, DROPPED, "infer", WrittenFor("", form)).infer_step(Scores(4, 1))
    batch = batches_of(ONES)[0]
    assert torch.equal(step(batch), step(without_empty_masks(batch)))
