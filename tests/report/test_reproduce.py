"""What a report says about running its session again, and the code of all settings that won."""

import shlex
from dataclasses import replace

import pytest
from sample_session import sample_history, sample_request

from advisor.cli.grammar import parse
from advisor.experiment import events
from advisor.experiment.state import SessionState
from advisor.export.formats.markdown import markdown_report
from advisor.judging.objective import Goal
from advisor.recipe.catalog import load_catalog
from advisor.records import Mode, Numerics, Objective
from advisor.report.reproduce import command_of
from advisor.report.settings import code_section


def report_of(history):
    return markdown_report(SessionState.of(history), sample_request(), load_catalog())


def test_the_session_its_date_and_its_command_are_told():
    report = report_of([events.GoalSet(Goal(), "20261122-222304"), *sample_history()[1:]])
    assert "Session 20261122-222304." in report
    assert command_of(sample_request()) in report


def test_a_journal_of_old_has_no_name():
    assert "Session " not in report_of(sample_history()).partition("## To reproduce it")[2].partition("##")[0]


def test_the_code_of_every_setting_that_won_is_there():
    state, catalog = SessionState.of(sample_history()), load_catalog()
    report = report_of(sample_history())
    assert len(state.stack.settings) > 1
    for key, value in state.stack.settings.items():
        code = catalog.by_key(key).code(value).strip().splitlines()
        assert all(line in report for line in code), key


def test_a_value_that_no_recipe_has_is_left_out_of_the_code():
    state, catalog = SessionState.of(sample_history()), load_catalog()
    damaged = {**dict.fromkeys(state.stack.settings, -1.0), "no.such_setting": True}
    state.stack = replace(state.stack, settings=damaged)
    assert [*code_section(state, catalog)] == []


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"budget_s": 90.5, "objective": Objective.MEMORY, "keep_speed": 0.8, "allow": Numerics.CHANGED},
        {"accept": (("batch_size", 64), ("pin_memory", True), ("half_weights", None))},
        {"evaluate": "m:evaluate", "min_score": 0.0, "max_drop": 0.005, "eval_steps": 20},
        {"memory_limit_bytes": 16 * 2**30, "only": ("compile", "tf32"), "skip": ("threads",)},
        {"latency_limit_ms": 12.5},
    ],
)
def test_the_command_asks_for_the_same(changes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mode = Mode.INFER if "latency_limit_ms" in changes else Mode.TRAIN
    target = replace(sample_request().target, mode=mode, batch_size=8, arguments=("--lr", "0.1"))
    wanted = replace(sample_request(), target=target, config_path=None, key_map={}, scripts=(), **changes)
    words = shlex.split(command_of(wanted))
    assert words[0] == "perf-advisor"
    asked = parse(words[1:]).request
    assert replace(asked, target=replace(asked.target, directory=target.directory)) == wanted
