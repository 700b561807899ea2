"""Habits in the reports, and in a whole session that reads the user's source."""

from dataclasses import replace

import pytest
from facts import gpu_facts
from planted import TINY_TARGET
from proposals import CATALOG
from real_session import Run, short_trials
from report_text import html_report, markdown_report
from sample_session import sample_history, sample_request

from advisor.experiment.events import TrialsPlanned
from advisor.experiment.past.journal import open_session
from advisor.experiment.state import SessionState
from advisor.export.json_report import report
from advisor.records import Candidate, Finding
from advisor.report.evidence import price_of, price_text


@pytest.fixture
def state():
    return SessionState.of(sample_history())


def test_a_finding_is_priced_by_the_trial_of_its_habit(state):
    zero_grad, loss_sync = state.findings
    assert price_of(zero_grad, state.trials.values()).candidate.name == "zero_grad=zeros"
    assert price_of(loss_sync, state.trials.values()) is None


def test_a_line_is_priced_by_the_value_that_does_the_same(state):
    zeros = state.trials["zero_grad=zeros"]
    manual = replace(zeros, candidate=replace(zeros.candidate, value="manual"))
    for value, price in (("zeros", zeros), ("manual", manual), ("gradcheck", None)):
        assert price_of(replace(state.findings[0], value=value), [manual, zeros]) is price
    slower = replace(manual, comparison=replace(manual.comparison, speedup=0.5))
    assert price_of(replace(state.findings[0], value=""), [slower, zeros]) is zeros  # what is lacking: the best
    good = replace(zeros, candidate=Candidate("zero_grad", "step.zero_grad", "none", already_on=True))
    assert price_of(state.findings[0], [zeros, good]) is good  # the loop's own habit: the good way


def test_a_finding_that_no_trial_prices_has_the_instrumented_passs_figure(state):
    zero_grad, loss_sync = state.findings
    assert price_text(zero_grad, state).startswith("zero_grad=zeros 0.9")
    validation = replace(zero_grad, recipe="eval_no_grad", value="grad")
    assert price_text(validation, state) == "8.90 ms a step, 8.30 ms in a better way"
    assert price_text(replace(zero_grad, recipe="debug_off", value="gradcheck"), state) == ""
    assert price_text(loss_sync, SessionState()) == ""


def test_the_reports_tell_habits_and_findings(state):
    request = sample_request()
    full = report(state, request, "0")
    assert full["findings"][0]["file"] == "train.py"
    assert full["findings"][0] | {"recipe": "zero_grad", "line": 33} == full["findings"][0]
    assert {"text", "what", "advice"} <= set(full["findings"][0])
    assert full["habits"][0]["way"] == "grad"
    for text in (markdown_report(state, request, CATALOG), html_report(state, request, CATALOG)):
        assert "train.py:33" in text
        assert "2 habits found in 2 files" in text
        assert "no_grad" in text
        assert "data.py cannot be parsed" in text


def test_a_recommendation_says_where_the_habit_was_found():
    finding = Finding("empty_cache", "train.py", 7, "torch.cuda.empty_cache()", "it empties the cache", "leave it out")
    facts = replace(gpu_facts(), findings=(finding, replace(finding, line=9)))
    assert CATALOG["empty_cache"].why(facts, "never") == "Found at train.py:7 and 1 more: it empties the cache"
    assert "Found at" not in CATALOG["loss_sync"].why(facts, "never")


LOOP = """
for images, labels in loader:
    optimizer.zero_grad(set_to_none=False)
    loss = criterion(model(images), labels)
    loss.backward()
    optimizer.step()
    print(loss.item())
raise RuntimeError("nobody runs this")
"""


@pytest.mark.process
@pytest.mark.usefixtures("own_state")
def test_a_session_reads_the_source(tmp_path):
    (tmp_path / "train.py").write_text(LOOP, encoding="utf-8")
    (tmp_path / "engine.py").write_text("def train():" + LOOP.replace("\n", "\n    "), encoding="utf-8")
    scripts = tuple(str(tmp_path / name) for name in ("train.py", "gone.py"))
    target = f"import engine\n{TINY_TARGET}"
    run = Run(tmp_path, target, only=("zero_grad", "eval_no_grad"), scripts=scripts, budget_s=60.0)
    with short_trials():
        state = run.run_until(
            lambda event: isinstance(event, TrialsPlanned) and "alone" in event.skipped["eval_no_grad"]
        ).state
    assert state.failure is None
    assert state.source_files == ("target.py", "train.py", "gone.py", "engine.py"), "what it imports as well"
    # The loss is read on the host in train.py:7, which matters on a GPU only.
    assert {f"{one.recipe} {one.place}" for one in state.findings} == {"zero_grad train.py:3", "zero_grad engine.py:3"}
    assert state.source_problems == ("gone.py could not be read: No such file or directory",)
    assert state.facts.findings == state.findings
    assert "no_grad" in state.skipped["eval_no_grad"]
    assert SessionState.of(open_session(run.journal.session_id).events).findings == state.findings
