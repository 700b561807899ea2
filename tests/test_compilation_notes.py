from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from advisor.trial.compilation import CompileMark, compilation_notes, compile_mark


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


class Breaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        x = self.layer(x)
        print(end="")
        if x.sum() > 1e9:
            x = -x
        return x


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        return torch.sin(x) + self.calls


def steps(model, count, widths=(3,)):
    compiled = torch.compile(model, backend="eager")
    for index in range(count):
        compiled(torch.ones(widths[index % len(widths)], 4))
        if hasattr(model, "calls"):
            model.calls += 1


def test_nothing_compiled_nothing_to_say():
    assert compile_mark().frames == 0
    assert compilation_notes(CompileMark()) == ()


def test_a_whole_graph_is_no_news():
    steps(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), 2)
    assert compile_mark().frames == 1
    assert compilation_notes(compile_mark()) == ()


def test_graph_breaks_are_counted_with_their_reasons():
    steps(Breaks(), 1)
    (note,) = compilation_notes(compile_mark())
    assert note.startswith("2 graph breaks: ")
    assert "branch" in note.lower()
    assert "\n" not in note


def test_a_model_that_is_compiled_anew_at_every_step():
    model = Counts()
    steps(model, 1)
    mark = compile_mark()
    steps(model, 3)
    (note,) = compilation_notes(mark)
    assert note.startswith("recompiled 3 times after the warm-up: ")
    assert "self.calls == " in note


def test_other_shapes_after_the_warm_up():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = torch.compile(model, backend="eager")
    compiled(torch.ones(3, 4))
    mark = compile_mark()
    compiled(torch.ones(5, 4))
    (note,) = compilation_notes(mark)
    assert note.startswith("recompiled once after the warm-up: ")
    assert "size mismatch at index 0. expected 3, actual 5" in note


def test_a_function_that_was_compiled_too_often():
    steps(Counts(), torch._dynamo.config.recompile_limit + 3)
    notes = compilation_notes(compile_mark())
    assert any("gave up" in note for note in notes), notes
    assert not any("graph break" in note for note in notes), notes
