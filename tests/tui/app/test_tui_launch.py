"""The app's exporter: the files that the command line writes, from the app."""

import pytest
import tui_histories as histories
import yaml
from sample_session import sample_history, sample_request

from advisor.errors import UsageError
from advisor.experiment import events
from advisor.experiment.control import Decision
from advisor.experiment.events import Decided
from advisor.experiment.outputs import Outputs
from advisor.experiment.state import SessionState
from advisor.recipe.settings import Settings
from advisor.tui.exporting import FileExporter
from advisor.tui.leaving import closing_words


@pytest.fixture
def state():
    return SessionState.of(sample_history())


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text("# mine\nlr: 0.1  # tuned by hand\n", encoding="utf-8")
    return path


def test_every_format_has_a_preview_and_a_file(state, config, tmp_path):
    exporter = FileExporter(sample_request(), Outputs(config_path=str(config)))
    for offered in (each for each in exporter.formats() if not each.by_command):
        assert exporter.preview(offered.id, state).strip()
        saved = exporter.save(offered.id, tmp_path / offered.default_name, state)
        assert saved.stat().st_size > 0
    assert Settings.from_file(tmp_path / "tuned.yaml") == state.stack_settings


def test_the_config_is_offered_first_as_a_diff_and_never_overwritten(state, config):
    exporter = FileExporter(sample_request(), Outputs(config_path=str(config)))
    offered = exporter.formats()[0]
    assert (offered.id, offered.default_name) == ("config", "train.tuned.yaml")
    assert "+perf_advisor:" in exporter.preview("config", state)
    with pytest.raises(UsageError, match="your own config"):
        exporter.save("config", config, state)
    assert yaml.safe_load(config.read_text(encoding="utf-8")) == {"lr": 0.1}


def test_what_was_rejected_is_not_exported(state, tmp_path):
    exporter = FileExporter(sample_request(), Outputs())
    assert "precision.autocast" in state.stack_settings
    left = {key: value for key, value in state.stack_settings.items() if key != "precision.autocast"}
    state.apply(Decided("autocast", Decision.REJECTED))
    path = exporter.save("settings", tmp_path / "tuned.yaml", state)
    assert Settings.from_file(path) == left
    assert "# speed-up: not known: 2 settings, not measured since you rejected autocast" in path.read_text("utf-8")
    assert "precision.autocast" not in exporter.preview("python", state)
    state.apply(Decided("autocast", None))
    assert "# speed-up of these settings together:" in exporter.preview("settings", state)


def test_the_closing_words_have_the_result_and_count_the_trials() -> None:
    state = SessionState.of([event for event in histories.to_trials() if not isinstance(event, events.TrialMeasured)])
    state.apply(events.TrialMeasured(histories.CONTROL))
    assert next(closing_words(state, "1")) == "The baseline is kept in session 1.", "the control is nobody's candidate"
    state.apply(events.TrialMeasured(histories.ZERO_GRAD))
    assert next(closing_words(state, "1")) == "The baseline and 1 trial are kept in session 1."
    first = next(closing_words(SessionState.of(histories.whole()), "1"))
    assert first.startswith("Result: 2.35x")
    assert "32.6 → 13.9 ms a step" in first
