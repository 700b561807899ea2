import re

import pytest
import torch
from torch import nn
from torch._dynamo.utils import clear_compilation_metrics
from trial_processes import spec_of

from advisor.records import Mode, Outcome
from advisor.runner.trials import Runner
from advisor.trial.profile.profiler import compilation_notes, compiled_frames


@pytest.fixture(autouse=True)
def _as_in_a_trials_process(fresh_compiler):
    clear_compilation_metrics()


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


def steps(model, count, widths=(3,), compiled=None):
    compiled = torch.compile(model, backend="eager") if compiled is None else compiled
    for index in range(count):
        compiled(torch.ones(widths[index % len(widths)], 4))
        if hasattr(model, "calls"):
            model.calls += 1
    return compiled


def test_nothing_compiled_nothing_to_say():
    assert compiled_frames() == 0
    assert compilation_notes(0) == ()


def test_a_whole_graph_is_no_news():
    steps(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), 2)
    assert compiled_frames() == 1
    assert compilation_notes(compiled_frames()) == ()


@pytest.mark.parametrize(
    ("model", "widths", "warm", "note"),
    [
        (Breaks(), (3,), 1, "2 graph breaks: .*branch"),
        (Counts(), (3,), 1, "recompiled 3 times after the warm-up: TORCH_LOGS=recompiles"),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (3, 5), 1, "recompiled once after the warm-up: "),
    ],
)
def test_what_is_compiled_after_the_warm_up_is_told(model, widths, warm, note):
    compiled = steps(model, warm)
    mark = compiled_frames()
    steps(model, 3, widths, compiled)
    (told,) = compilation_notes(mark)
    assert re.match(note, told)


def test_a_function_that_was_compiled_too_often(monkeypatch):
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 8)  # timm's import makes it a million
    steps(Counts(), 11)
    notes = compilation_notes(compiled_frames())
    (gave_up,) = [note for note in notes if "gave up" in note]
    assert "TORCH_LOGS=recompiles" in gave_up
    assert gave_up.endswith("belong into tensors")
    assert not any("graph break" in note for note in notes), notes


TARGET = """
import torch
from torch import nn

torch.set_num_threads(1)


class Breaks(nn.Sequential):
    def forward(self, x):  # of products alone: there is no C++ to compile
        x = self[0](x)
        torch._dynamo.graph_break()
        return self[1](x)


def breaks():
    return Breaks(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(4, 8)
"""


def test_a_compiled_trial_notes_its_graph_breaks(tmp_path):
    (tmp_path / "planted_compile.py").write_text(TARGET, encoding="utf-8")
    compiled = {"compile.mode": "default"}
    spec = spec_of(tmp_path, "planted_compile.py:breaks", mode=Mode.INFER, settings=compiled, timeout_s=200.0)
    result = Runner().run(spec, lambda message: None)
    assert result.outcome is Outcome.MEASURED, result.reason
    assert any(note.startswith("1 graph break: ") for note in result.notes), result.notes
