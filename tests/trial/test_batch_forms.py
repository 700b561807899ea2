"""Batches that are not built alike: a step that fails on one says in what it differs from the first."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from advisor.errors import TargetError
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.step import InferStep, TrainStep
from advisor.target.batches import batches_in_data
from advisor.target.loop import GivenBatches
from advisor.trial.measurement.feed import Feed, form_of, form_problem
from advisor.trial.measurement.probe import probe_training
from advisor.trial.timed_loop import stepper

PLAN = StepPlan(mode=Mode.TRAIN, device="cpu")
PAIR = (torch.ones(8, 4), torch.zeros(8, dtype=torch.long))


@dataclass
class Graph:
    nodes: torch.Tensor
    edges: torch.Tensor


def train_step():
    model = nn.Linear(4, 3)
    return TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), PLAN)


def given(batches) -> GivenBatches:
    loader = batches_in_data(batches, [])
    assert isinstance(loader, GivenBatches)
    return loader


@pytest.mark.parametrize("count", [1, 3])
def test_objects_that_hold_tensors_are_batches(count):
    graphs = [Graph(torch.ones(3 + number), torch.ones(2, 5)) for number in range(count)]
    assert list(given(graphs)) == graphs
    assert batches_in_data((graphs[0], PAIR[1]), []) == (graphs[0], PAIR[1]), "inputs and a target"


# --- forms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (torch.ones(8, 4), torch.ones(3, 7)),
        (PAIR, (torch.ones(3, 4), torch.zeros(3, dtype=torch.long))),
        ({"x": torch.ones(2), "name": "a"}, {"name": "b", "x": torch.ones(5)}),
        ([{"box": torch.ones(2, 4)}], [{"box": torch.ones(1, 4)}, {"box": torch.ones(3, 4)}]),
        (Graph(torch.ones(3), torch.ones(2, 5)), Graph(torch.ones(4), torch.ones(2, 9))),
        ((torch.ones(2), ["a", "b"]), (torch.ones(3), ["a", "b", "c"])),
    ],
)
def test_sizes_and_values_are_no_part_of_a_form(first, other):
    assert form_of(first).parts == form_of(other).parts


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (torch.ones(8, 4), torch.ones(8, 4, dtype=torch.float64)),
        (torch.ones(8, 4), torch.ones(8, 4, 1)),
        (PAIR, list(PAIR)),
        (PAIR, (*PAIR, torch.ones(8, 4))),
        (PAIR, {"x": PAIR[0], "y": PAIR[1]}),
        ({"x": torch.ones(2)}, {"x": torch.ones(2), "mask": torch.ones(2)}),
        ({"x": torch.ones(2), "weight": 1.0}, {"x": torch.ones(2), "weight": None}),
        (Graph(torch.ones(3), torch.ones(2, 5)), Graph(torch.ones(3), torch.ones(5))),
    ],
)
def test_structure_types_and_dimensions_are(first, other):
    assert form_of(first).parts != form_of(other).parts


def test_a_form_reads_like_the_batch():
    assert form_of({"x": PAIR[0], "path": ["a", "b"]}).text == "{x: float32[8, 4], path: [str, str]}"
    assert form_of((Graph(torch.ones(3), torch.ones(2, 5)), 3)).text == (
        "(Graph(nodes=float32[3], edges=float32[2, 5]), int)"
    )
    assert len(form_of([torch.ones(2)] * 200).text) == 160


# --- steps that fail ------------------------------------------------------------------------------------------


def test_the_first_steps_say_which_batch_is_built_otherwise():
    batches = [PAIR, PAIR, {"left": PAIR[0], "right": PAIR[0], "y": PAIR[1]}]
    with pytest.raises(TargetError) as error:
        probe_training(train_step(), batches, 0)
    assert error.value.message.startswith(
        "the step fails on batch 3, which is {left: float32[8, 4], right: float32[8, 4], y: int64[8]}, "
        "where the first is (float32[8, 4], int64[8]): TypeError: "
    )
    assert "the same structure and types" in error.value.hint
    assert "unexpected keyword argument" in error.value.details


def test_later_steps_say_so_too():
    doubles = (PAIR[0].double(), PAIR[1])
    feed = Feed(given([PAIR] * 6 + [doubles]))
    run_steps = stepper(train_step(), feed, 1)
    assert run_steps(6) == 48
    with pytest.raises(TargetError, match=r"batch 7, which is \(float64\[8, 4\], int64\[8\]\), where the first is"):
        run_steps(1)


def test_inference_says_so_too():
    feed = Feed(DataLoader([torch.ones(4), torch.ones(4, dtype=torch.long)], batch_size=1))
    with pytest.raises(TargetError, match=r"batch 2, which is int64\[1, 4\], where the first is float32\[1, 4\]"):
        stepper(InferStep(nn.Linear(4, 3), StepPlan(mode=Mode.INFER, device="cpu")), feed, 1)(2)


def test_what_fails_on_batches_of_one_form_stays_the_error_that_it_is():
    wrong = (PAIR[0], PAIR[1] + 9)
    with pytest.raises(IndexError, match="out of bounds"):
        probe_training(train_step(), [PAIR, wrong], 0)
    with pytest.raises(IndexError, match="out of bounds"):
        stepper(train_step(), Feed(given([PAIR, PAIR, wrong])), 1)(3)


def test_what_says_what_to_do_already_is_left_alone():
    told = TargetError("the DataLoader failed at batch 2.", "Check it.")
    assert form_problem(told, form_of(PAIR), {"x": PAIR[0]}, 2) is None
