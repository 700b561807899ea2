"""Landscapes: stored ones can be replayed faithfully, and the search finds what they hold."""

import functools
import math
import re
from dataclasses import replace
from statistics import median

import pytest
from landscapes.harness import best_known, replayed, run_session
from landscapes.landscape import compile_key, load, sample_seconds, stored
from landscapes.predict import Predictor
from landscapes.replay import Replay

from advisor.experiment.events import Said, StackMeasured
from advisor.recipe.catalog import load_catalog
from advisor.records import TargetSpec, TrialSpec

# The least share of the best known after 120 s of replayed time, by landscape; the others have the last one's.
BOUNDS = {"synthetic_host_bound": 0.9, "synthetic_convnet": 0.9, "synthetic_loader_bound": 0.85, "": 0.85}
BOUND_AT_S = 120.0
SEED = 2
CATALOG = load_catalog()
PATHS = {path.name.removesuffix(".json.gz"): path for path in stored()}
# Those with a search of their own kind; regret.py searches all of them.
SEARCHED = ("gpt2", "jpeg", "mlp12", "resnet50", "synthetic_convnet", "synthetic_host_bound", "synthetic_loader_bound")
TARGET = TargetSpec("made_up.py:build", ".")


@functools.cache
def landscape_of(name):
    return load(PATHS[name])


@pytest.fixture(params=PATHS)
def landscape(request):
    return landscape_of(request.param)


def spec_of(settings, **changes):
    spec = TrialSpec("trial", TARGET, dict(settings), 1.0, 1.5, 900.0, "", environment=CATALOG.environment(settings))
    return replace(spec, **changes)


def ran(replay, settings, **changes):
    return replay.run(spec_of(settings, **changes), lambda message: None)


# --- every stored landscape --------------------------------------------------------------------------------------


def test_recorded_combinations_take_what_was_recorded(landscape):
    replay = Replay(landscape, seed=3, catalog=CATALOG)
    for settings, known in replay.predictor.measured.items():
        recorded_s = median(sample_seconds(run.result) for run in known.measured)
        answer = replay.predictor.answer(settings)
        off = math.log(sample_seconds(ran(replay, settings)) / recorded_s)
        assert abs(off) < 5 * (answer.process_spread + answer.block_spread), settings
        assert not answer.predicted


def test_recorded_failures_fail_again(landscape):
    replay = Replay(landscape, catalog=CATALOG)
    for settings, known in replay.predictor.known.items():
        if not known.measured:
            result = ran(replay, settings)
            assert not result.measured, settings
            assert result.outcome is known.runs[0].result.outcome


@pytest.mark.parametrize("landscape", SEARCHED, indirect=True)
def test_the_search_finds_most_of_what_is_known(landscape):
    with replayed(landscape, seed=SEED) as replay:
        session = run_session(replay, budget_s=BOUND_AT_S)
        share = session.share_at(BOUND_AT_S)
    bound = BOUNDS.get(landscape.name, BOUNDS[""])
    assert not session.problem
    assert share >= bound, f"{session.stack_at(math.inf)} instead of {best_known(replay)[0]}"
    assert session.session_s < 1.05 * BOUND_AT_S


# --- compiling ------------------------------------------------------------------------------------------------------


def session_of_slow_compiling(landscape, monkeypatch, compile_s, budget_s=120.0):
    """The last stack of a session in which compiling takes so long, and what it said."""

    def warm_up_s(replay, answer):
        code = compile_key(answer.settings)
        return answer.cached_s if code is None or code in replay._compiled else compile_s

    monkeypatch.setattr(Replay, "warm_up_s", warm_up_s)
    with replayed(landscape, seed=SEED) as replay:
        session = run_session(replay, budget_s=budget_s)
    assert not session.problem
    assert session.session_s <= budget_s + 1
    told = [event for _, event in session.told]
    stacks = [event.record for event in told if isinstance(event, StackMeasured)]
    return stacks[-1], [event.text for event in told if isinstance(event, Said)]


def test_a_compilation_that_does_not_end_costs_nothing(monkeypatch):
    """The compilation continues beside the trials, and the result without it is confirmed."""
    last, said = session_of_slow_compiling(landscape_of("resnet50"), monkeypatch, 500.0)
    assert not CATALOG.compiles(last.settings)
    assert last.confirmed
    assert last.comparison.speedup > 1.7
    (unfinished,) = (text for text in said if "still compiled when the time was over" in text)
    assert float(re.search(r"after (\d+) s: `--resume`", unfinished)[1]) > 30


def test_a_compilation_that_takes_a_third_longer_than_expected_is_waited_for(monkeypatch):
    last, said = session_of_slow_compiling(landscape_of("resnet50"), monkeypatch, 50.0)
    assert not any("still compiled" in text for text in said)
    assert CATALOG.compiles(last.settings)
    assert last.comparison.speedup > 2.5


# --- predictions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["synthetic_convnet", "synthetic_host_bound"])
def test_combinations_that_were_not_recorded_are_predicted(name):
    """Every fourth recorded combination is left out and predicted from the others."""
    whole, landscape, off = Predictor(landscape_of(name), CATALOG), landscape_of(name), []
    for settings in list(whole.measured)[3::4]:
        others = tuple(run for run in landscape.runs if whole.canonical(run.settings) != settings)
        answer = Predictor(replace(landscape, runs=others), CATALOG).answer(settings)
        recorded_s = median(sample_seconds(run.result) for run in whole.measured[settings].measured)
        off.append(abs(math.log(answer.sample_s / recorded_s)))
        assert answer.predicted
    assert len(off) > 15
    assert median(off) < 0.05
    assert sorted(off)[int(0.9 * len(off))] < 0.15
