"""Scores in whole sessions with real trials: the target's function decides which settings may change results."""

import json

import pytest
from planted import TINY_TARGET, plant
from real_session import Run
from report_text import markdown_report
from trial_processes import spec_of

from advisor.errors import ExitCode
from advisor.experiment import events
from advisor.export.json_report import report
from advisor.records import Numerics, Score, TrialKind
from advisor.runner.trials import Runner

pytestmark = pytest.mark.usefixtures("real_sessions")

# --- inference: weights that are rounded -----------------------------------------------------------------------

# A classifier whose classes are those of its own plain weights: what its score loses, rounding the weights costs.
CLASSIFIER = """
import time, torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
INPUTS = torch.randn(512, 16)
LAYER = nn.Linear(16, 10)
CLASSES = LAYER(INPUTS).argmax(1)

class Pause(nn.Module):
    def forward(self, x):
        time.sleep(0.01)
        return x

def build():
    return nn.Sequential(LAYER, Pause()).requires_grad_(False), INPUTS[:8]

def evaluate(model):
    if hasattr(model, "unfit"):
        raise ValueError("no such layer")
    return (model(INPUTS).argmax(1) == CLASSES).float().mean()
"""
ROUNDED = """
import torch
weight = workload.model[0].weight
scale = weight.abs().max() / {levels}
weight.copy_((weight / scale).round() * scale)
workload.model[1] = torch.nn.Identity()
"""


@pytest.fixture(scope="module")
def rounded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rounded")
    plant(folder / "recipes", "int8", apply=ROUNDED.format(levels=127), numerics="CHANGED")
    plant(folder / "recipes", "ternary", apply=ROUNDED.format(levels=1), numerics="CHANGED")
    plant(folder / "recipes", "unfit", apply="workload.model.unfit = True", numerics="CHANGED")
    options = {"only": ("int8", "ternary", "unfit"), "budget_s": 30.0}
    return Run(folder, CLASSIFIER, evaluate="target.py:evaluate", min_score=0.9, **options).run()


def test_settings_that_change_results_are_used_where_their_score_is_good_enough(rounded):
    assert rounded.state.stack.settings == {"planted.int8": True}
    numerics = rounded.state.stack.numerics
    assert numerics.declared is Numerics.CHANGED
    assert numerics.score.baseline == 1.0
    assert 0.9 <= numerics.score.value <= 1.0
    assert not numerics.score.problem
    [used] = [item for item in rounded.state.recommendations if item.recipe == "int8"]
    assert used.in_stack
    assert not used.needs_consent


def test_settings_whose_score_falls_are_refused_with_the_bound(rounded):
    score = rounded.state.trials["ternary=true"].numerics.score
    assert score.value < 0.9
    assert score.problem == f"the score falls from 1 to {score.value:.4g}; --min-score is 0.9"
    assert score.problem in markdown_report(rounded.state, rounded.request, rounded.session.catalog)


def test_settings_under_which_the_function_fails_are_refused(rounded):
    score = rounded.state.trials["unfit=true"].numerics.score
    assert score.value is None
    assert "ValueError: no such layer" in score.problem


def test_the_report_has_the_scores_and_what_they_took(rounded):
    written = json.loads(json.dumps(report(rounded.state, rounded.request)))
    assert (written["evaluate"], written["min_score"]) == ("target.py:evaluate", 0.9)
    assert written["baseline"]["score"] == 1.0
    assert written["stack"]["score"]["baseline"] == 1.0
    assert any("score of your own settings is 1" in said.text for said in rounded.posted(events.Said))
    assert sum(name.startswith("score: ") for name in rounded.order) == 4


# --- training: the same steps from the same start -----------------------------------------------------------------

TRAINED = f"""
{TINY_TARGET}
_, BATCH, *_ = build()
def evaluate(model):
    return -nn.functional.cross_entropy(model(BATCH[0]).float(), BATCH[1])
"""


def test_a_training_is_scored_after_as_many_steps_as_were_asked_for(tmp_path):
    (tmp_path / "target.py").write_text(TRAINED, encoding="utf-8")
    options = {"kind": TrialKind.SCORE, "evaluate": "target.py:evaluate"}
    few, many, same = (
        Runner().run(spec_of(tmp_path, "target.py", steps=steps, **options), lambda message: None).score
        for steps in (2, 20, 20)
    )
    assert (few.steps, many.steps) == (2, 20)
    assert few.value < many.value
    assert same == many


DTYPE = f"""
{TINY_TARGET}
def evaluate(model):
    output = model(torch.randn(3, 16))
    return output.dtype is torch.bfloat16 and not output.requires_grad and not model.training
"""


@pytest.mark.parametrize(
    ("key", "called"),
    [
        ("precision.weights", "model"),
        ("precision.autocast", "model.forward"),
        ("precision.autocast", "__import__('copy').deepcopy(model)"),
    ],
)
def test_the_function_calls_the_model_as_the_step_does(tmp_path, key, called):
    """Batches are cast and autocast is on, even if the function calls a part of the model or a copy of it."""
    (tmp_path / "target.py").write_text(DTYPE.replace("model(torch", f"{called}(torch"))
    options = {"kind": TrialKind.SCORE, "evaluate": "target.py:evaluate", "steps": 3}
    result = Runner().run(spec_of(tmp_path, "target.py", settings={key: "bfloat16"}, **options), lambda message: None)
    assert result.score == Score(1.0, steps=3)


# --- bad input ------------------------------------------------------------------------------------------------


def scored(folder, body):
    """The trial that scores a target's own settings by a function with this body."""
    (folder / "target.py").write_text(f"import time\n{TINY_TARGET}\ndef evaluate(model):\n    {body}\n")
    options = {"kind": TrialKind.SCORE, "evaluate": "target.py:evaluate", "steps": 3}
    options["timeout_s"] = 4.0 if "sleep" in body else 60.0
    return Runner().run(spec_of(folder, "target.py", **options), lambda message: None)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return None", "returned NoneType, no number"),
        ("return model(torch.ones(3, 16))", "returned float32[3, 4], no number"),
        ("return float('nan')", "returned nan, no number"),
        ("time.sleep(60)", "no result after 4 s (evaluating the model)"),
    ],
)
def test_a_function_that_gives_no_score_fails_its_trial_in_two_lines(tmp_path, body, said):
    result = scored(tmp_path, body)
    assert said in result.reason
    assert result.hint


@pytest.mark.parametrize(
    ("function", "said", "what_to_do"),
    [
        ("evaluate(model):\n    return 0.5", "is 0.5 after 100 steps; --min-score is 0.75", ""),
        ("evaluation(model):\n    return 1.0", "target.py has no 'evaluate'", "evaluation"),
    ],
)
def test_without_a_score_that_is_good_enough_the_session_ends_with_two_lines(tmp_path, function, said, what_to_do):
    text = f"{TINY_TARGET}\ndef {function}\n"
    run = Run(tmp_path, text, only=("zero_grad",), evaluate="target.py:evaluate", min_score=0.75, budget_s=60.0).run()
    (failure,) = run.posted(events.SessionFailed)
    assert said in failure.message
    assert failure.hint
    assert what_to_do in failure.hint
    assert failure.exit_code in (ExitCode.TARGET, ExitCode.USAGE)
