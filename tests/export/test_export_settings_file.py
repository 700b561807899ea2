# ruff: noqa: RUF001 - the en dash stands between the ends of an interval

import datetime
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_session import sample_history

from advisor.errors import UsageError
from advisor.experiment.state import SessionState
from advisor.export.settings_file import settings_yaml
from advisor.recipe.settings import Settings
from advisor.version import __version__

TODAY = datetime.date.today().isoformat()


@pytest.fixture(scope="module")
def state() -> SessionState:
    return SessionState.of(sample_history())


def test_the_whole_file(state):
    assert settings_yaml(state, state.stack_settings, target="mymodel:build") == (
        f"# Made by perf-advisor {__version__} on {TODAY}.\n"
        "# target: mymodel:build\n"
        "# hardware: 1 x NVIDIA H200\n"
        "# versions: torch 2.11.0+cu130, cuda 13.0, cudnn 9.15.1, torchvision 0.26.0, python 3.12.3\n"
        "# speed-up of these settings together: 1.97x (1.96–1.98), confirmed\n"
        "# step: 26.3 ms before, 13.4 ms tuned\n"
        "\n"
        "model.memory_format: channels_last  # alone: 1.39x (1.38–1.40)\n"
        "optimizer.implementation: fused  # alone: 1.019x (1.014–1.023)\n"
        "precision.autocast: bfloat16  # alone: 1.12x (1.11–1.13)\n"
    )


def test_settings_other_than_the_stack_do_not_claim_its_speedup(state):
    text = settings_yaml(state, {"precision.autocast": "bfloat16"})
    assert "not measured together" in text
    assert "confirmed" not in text


def test_an_unconfirmed_stack_says_so(state):
    unconfirmed = SessionState.of(sample_history())
    once = replace(unconfirmed.stack.comparison, paired=False)
    unconfirmed.measured_stack = replace(unconfirmed.stack, confirmed=False, comparison=once)
    unconfirmed.measured_stack = replace(unconfirmed.measured_stack, step_ms=13.3)  # the median of one process
    text = settings_yaml(unconfirmed, unconfirmed.stack_settings)
    assert "measured once" in text
    assert "13.4 ms tuned" in text, "the step of the headline"


def test_a_target_cannot_break_out_of_its_comment(state):
    text = settings_yaml(state, {"a.b": 1}, target="x.py:build\nprecision.autocast: float16\u2028c.d: 2\x85e.f: 3")
    assert Settings.from_yaml(text) == {"a.b": 1}


def test_a_file_without_settings_claims_no_speed_up(state):
    state.measured_stack = replace(state.stack, settings={})
    text = settings_yaml(state, {})
    assert "; nothing that was measured together is measurably faster\n" in text
    assert "speed-up" not in text
    assert Settings.from_yaml(text) == {}
    state.measured_stack, state.combinations = None, {}
    assert "; none were measured together\n" in settings_yaml(state, {})


def test_what_is_not_a_setting_is_refused(state):
    with pytest.raises(UsageError):
        settings_yaml(state, {"no dots": 1})


@pytest.mark.parametrize("text", ["!mine {a.b: 1}", "!!python/name:os.system {a.b: 1}", "perf_advisor: !mine {a.b: 1}"])
def test_settings_that_are_behind_an_unknown_tag_are_refused(text):
    with pytest.raises(UsageError, match=r"line 1: .* behind"):
        Settings.from_yaml(text)
    assert Settings.from_yaml("mine: !mine 1\nperf_advisor: {a.b: 1}\n") == {"a.b": 1}


VALUES = st.one_of(
    st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.sampled_from(["none", "yes", "1e-05", "~"])
)


@settings(max_examples=30)
@given(st.dictionaries(st.from_regex(r"\A[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){1,2}\Z"), VALUES, max_size=5))
def test_every_mapping_of_settings_comes_back(given_settings):
    back = Settings.from_yaml(settings_yaml(SessionState(), given_settings))
    assert dict(back) == given_settings
    assert [type(back[key]) for key in given_settings] == [type(value) for value in given_settings.values()]


def test_a_measured_effect_beside_every_kind_of_value(state):
    text = settings_yaml(state, {"data.batch_size": 128, "step.zero_grad": "zeros", "backends.cudnn_benchmark": True})
    assert "backends.cudnn_benchmark: true  # alone: same\n" in text
    assert "step.zero_grad: zeros  # alone: 0.974x (0.970–0.978)\n" in text
    assert Settings.from_yaml(text)["data.batch_size"] == 128
