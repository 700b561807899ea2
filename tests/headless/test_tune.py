"""``advisor.tune``: from a notebook or a program, and what comes back."""

import multiprocessing.spawn
import operator
import threading
from pathlib import Path

import pytest
import torch
from sample_session import cancelled_history, failed_history, sample_history, sample_request
from test_headless_run import Playback

import advisor
from advisor.errors import AdvisorError, UsageError
from advisor.experiment.state import SessionState
from advisor.headless import tune as tuning
from advisor.headless.tune import Tuned, program_left_alone, target_of
from advisor.records import TargetSpec
from advisor.workloads.entrypoint import load_function, load_target


def build():
    return torch.nn.Linear(4, 2), torch.ones(3, 4)


def tuned(history=None):
    return Tuned(SessionState.of(history or sample_history()), sample_request())


class TestWhatComesBack:
    def test_settings_and_report(self, tmp_path):
        found = tuned()
        assert found.settings == dict(SessionState.of(sample_history()).stack.settings)
        assert found.speedup > 1
        assert found.report().startswith("#")
        found.report(tmp_path / "report.html")
        assert "<html" in (tmp_path / "report.html").read_text()

    def test_it_shows_itself(self):
        shown = tuned()._repr_html_()
        assert shown.startswith("<iframe")
        assert "&lt;html" in shown
        assert "http" not in shown.partition("srcdoc")[0]
        assert "x with " in repr(tuned())

    def test_saved_settings_are_loaded_again(self, tmp_path):
        file = tmp_path / "tuned.yaml"
        tuned().save(file)
        assert dict(advisor.load(file).settings) == tuned().settings
        tuned().save(tmp_path / "tuned.py")
        assert "def prepare(" in (tmp_path / "tuned.py").read_text()

    def test_applying_prepares_the_objects(self, monkeypatch):
        monkeypatch.setattr(Tuned, "settings", property(lambda self: {"step.zero_grad": "zeros"}))
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert tuned().apply(model, optimizer) == (model, optimizer)

    def test_without_anything_found_it_says_so(self):
        found = tuned(cancelled_history()[:3])
        assert found.settings == {}
        assert found.speedup is None
        assert "no settings" in repr(found)


class TestASession:
    @pytest.fixture
    def asked(self, monkeypatch):
        """The requests that sessions get; each session replays a recorded one."""
        asked = []

        def opened(request, past, emit):
            asked.append(request)
            history = failed_history() if request.target.target == "fails:build" else sample_history()
            return Playback(history)(request, past, emit)

        monkeypatch.setattr(tuning, "open_session", opened)
        return asked

    def test_it_runs_with_lines_of_progress(self, asked, capsys):
        assert advisor.tune("demo", "2m").settings
        shown = capsys.readouterr().err
        assert len(shown.splitlines()) > 5
        assert "100 %" in shown.splitlines()[-1]

        advisor.tune("demo", "2m", progress=False)
        assert capsys.readouterr().err == ""

    def test_a_failure_is_raised(self, asked):
        with pytest.raises(AdvisorError):
            advisor.tune("fails:build", progress=False)

    @pytest.mark.parametrize("only", ["autocast, compile", ("autocast", "compile"), ["autocast", "compile"]])
    def test_recipes_are_named_in_a_text_or_a_list(self, only, asked):
        advisor.tune("mymodel:build", only=only, progress=False)
        assert asked[0].only == ("autocast", "compile")

    def test_a_function_scores_the_model(self, asked):
        advisor.tune("mymodel:build", evaluate=operator.attrgetter("training"), max_drop=0.01, steps=7, progress=False)
        assert (asked[0].max_drop, asked[0].eval_steps) == (0.01, 7)
        assert load_function(asked[0].evaluate, ".")(torch.nn.Identity()) is True
        with pytest.raises(UsageError, match="need each other"):
            advisor.tune("mymodel:build", evaluate="mymodel:evaluate")

    def test_trials_do_not_run_the_program_that_calls(self, monkeypatch):
        told = {"name": "a", "init_main_from_path": "program.py"}
        monkeypatch.setattr(multiprocessing.spawn, "get_preparation_data", lambda name: told)
        with program_left_alone():
            assert multiprocessing.spawn.get_preparation_data("a") == {"name": "a"}
        assert multiprocessing.spawn.get_preparation_data("a") is told

    def test_not_from_a_trial(self, monkeypatch):
        monkeypatch.setattr("multiprocessing.parent_process", object)
        with pytest.raises(UsageError, match="while its own target was imported"):
            advisor.tune("demo")


class TestTheWorkload:
    def test_a_function_is_named_by_its_module(self):
        assert target_of(build) == f"{__name__}:build"
        assert target_of("mymodel:build") == "mymodel:build"

    def test_an_object_reaches_the_process_that_measures(self):
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        target = target_of((model, (torch.ones(3, 4), torch.ones(3, 2)), torch.nn.MSELoss(), optimizer))
        assert Path(target).stat().st_mode & 0o077 == 0
        loop = load_target(TargetSpec(target, "."))
        assert torch.equal(loop.model.weight, model.weight)
        assert loop.optimizer.param_groups[0]["params"][0] is loop.model.weight

    def test_what_is_defined_in_a_notebook_reaches_it_too(self):
        assert load_function(target_of(lambda: 42), ".")() == 42

    def test_what_cannot_be_handed_over_says_what_to_do(self):
        with pytest.raises(UsageError) as error:
            target_of(threading.Lock())
        assert "%%writefile" in error.value.hint
