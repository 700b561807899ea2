"""The headless reporter on recorded sessions, and whole headless runs with a session that plays one back."""

# ruff: noqa: RUF001 - the en dash stands between the ends of an interval

import io
import json
import os
import signal
import threading
import time
from dataclasses import replace

import pytest
from msgspec import structs
from sample_session import (
    CONTRIBUTION,
    cancelled_history,
    cpu_history,
    cpu_request,
    detailed_history,
    failed_history,
    on_the_stack,
    sample_history,
    sample_request,
)

from advisor.cli.main import main
from advisor.errors import AdvisorError, ExitCode
from advisor.experiment import events
from advisor.experiment.request import Outputs
from advisor.experiment.state import SessionState
from advisor.export.outputs import write_outputs
from advisor.headless.run import HeadlessReporter, run_headless
from advisor.recipe.catalog import load_catalog
from advisor.records import Outcome, TrialResult, Verification
from advisor.report.figures import settings_to_export
from advisor.report.terminal import print_sections
from advisor.report.whole import summary_sections


def progress_of(history):
    file = io.StringIO()
    reporter = HeadlessReporter(file)
    for event in history:
        reporter.handle(event)
    return file.getvalue().splitlines()


def summary_of(history, state=None):
    file = io.StringIO()
    print_sections(summary_sections(state or SessionState.of(history), load_catalog()), file)
    return file.getvalue()


def first(kind, name=""):
    """The first event of a kind in the sample, of the trial of this name where one is given."""
    found = (event for event in sample_history() if isinstance(event, kind))
    return next(event for event in found if not name or event.record.candidate.name == name)


def test_a_finished_trial_is_one_line_with_progress_interval_and_verdict():
    lines = progress_of(sample_history())
    assert "[ 18 %, 1 min 36 s left] autocast=bfloat16  1.12x (1.11–1.13) faster" in lines
    assert "[ 36 %, 1 min 12 s left] cudnn_benchmark=true  same" in lines
    assert sum("compile=max-autotune  out of memory: " in line for line in lines) == 1


def test_findings_are_not_counted_before_it_is_known_which_of_them_matter():
    read = first(events.SourceRead)
    assert read.findings
    assert progress_of([read])[0] == "[  0 %] read 2 files of your source, for habits that cost time"


def test_a_stack_that_is_told_again_is_a_line_only_when_it_reads_otherwise():
    stack = first(events.StackMeasured)
    confirmed = structs.replace(stack, record=replace(stack.record, confirmed=not stack.record.confirmed))
    history = [event for event in sample_history() if not isinstance(event, events.StackMeasured)]
    lines = [line for line in progress_of([*history, stack, stack, confirmed, stack]) if "] together: " in line]
    assert len(lines) == 3


def test_the_share_never_falls_and_only_the_end_is_all_of_it():
    back = [events.ProgressMade(share, 9.0) for share in (0.4, 1.0, 0.2)]
    lines = progress_of([*(line for event in back for line in (event, events.Said("so"))), sample_history()[-1]])
    assert [line[:7] for line in lines] == ["[ 40 %,", "[ 99 %,", "[ 99 %,", "[100 %]"]
    assert progress_of([back[0], cancelled_history()[-1]]) == ["[ 40 %] interrupted after 19.0 s"]


def test_what_a_candidate_contributes_to_the_stack_is_a_line_once_it_is_known():
    record = first(events.TrialMeasured).record
    told = [events.TrialMeasured(on_the_stack(record, known)) for known in (None, CONTRIBUTION, CONTRIBUTION)]
    (line,) = progress_of(told)
    assert line.endswith(f"{record.candidate.name}  1.20x (1.15–1.25) in the combination, faster")


def test_a_record_told_again_is_a_line_only_when_it_reads_otherwise():
    told = first(events.TrialMeasured, "autocast=bfloat16")
    changed = events.TrialMeasured(replace(told.record, comparison=replace(told.record.comparison, ci_low=0.95)))
    lines = progress_of([told, told, changed])
    assert len(lines) == 2
    assert lines[1].endswith("unclear")


def test_the_summary_ranks_and_explains():
    text = summary_of(sample_history())
    ranking = text.partition("\nSettings, best first\n")[2].partition("\n\n")[0]
    ranked = [line.split()[0] for line in ranking.splitlines()[1:5]]
    assert ranked == ["model.memory_format:", "precision.autocast:", "data.batch_size:", "optimizer.implementation:"]
    for words in (
        "1.39x (1.38–1.40)",
        "1.97x (1.96–1.98) with 3 settings, confirmed",
        "step.zero_grad: slower on top of the others",
        "no step ended within 60 s",
        "data wait is 0.3 % of the step",
    ):
        assert words in text


@pytest.mark.parametrize("width", [80, 100])
def test_the_summary_is_plain_and_narrow_without_a_terminal(width, monkeypatch):
    monkeypatch.setattr("advisor.report.terminal.PLAIN_WIDTH", width)
    text = summary_of(detailed_history())
    assert "\x1b" not in text
    assert "…" not in text
    assert all(len(line) <= width and line == line.rstrip() for line in text.splitlines())
    for words in ("channels_last", "1.019x (1.014–1.023)", "train.py:41", "(0.970–0.978)"):
        assert words in text


def test_a_failed_session_has_no_summary():
    assert summary_of(failed_history()) == ""


class Playback:
    """A session that posts a recorded history. With ``wait`` it stops before the end until it is cancelled."""

    def __init__(self, history, wait=False):
        self.history = history
        self.wait = wait
        self.cancelled = threading.Event()
        self.waiting = threading.Event()

    def __call__(self, request, past, emit):
        self.emit = emit
        return self

    def run(self):
        for event in self.history[:-1]:
            self.emit(event)
        if self.wait:
            self.waiting.set()
            self.cancelled.wait(30)
        self.emit(self.history[-1])

    def cancel(self):
        self.cancelled.set()

    def verify(self, exported, stack):
        self.emit(events.ExportVerified(Verification(exported.path, 1.9, 26.3, 13.8, 1.97)))


@pytest.fixture
def run(monkeypatch):
    """A headless run of a session that plays back a history, or of the one that is given."""

    def run(history, outputs=None, request=None):
        session = history if isinstance(history, Playback) else Playback(history)
        monkeypatch.setattr("advisor.headless.run.open_session", session)
        return run_headless(request or sample_request(), outputs or Outputs())

    return run


def test_an_export_is_verified_unless_that_is_switched_off(run, tmp_path, capsys):
    outputs = Outputs(json_path=str(tmp_path / "out.json"), export_path=str(tmp_path / "tuned.yaml"))
    assert run(sample_history(), outputs) == ExitCode.OK
    printed = capsys.readouterr()
    assert "verifying" in printed.err
    assert "Exported file confirmed: 1.90x in a plain loop" in " ".join(printed.out.split())
    assert json.loads((tmp_path / "out.json").read_text())["verification"]["speedup"] == 1.9
    assert run(sample_history(), replace(outputs, verify=False)) == 0
    assert "verifying" not in capsys.readouterr().err


def test_a_run_writes_every_output(run, tmp_path, capsys):
    config = tmp_path / "train.yaml"
    config.write_text("precision: {autocast: none}\n")
    outputs = Outputs(
        json_path=str(tmp_path / "out.json"),
        export_path=str(tmp_path / "tuned.yaml"),
        report_path=str(tmp_path / "report.md"),
        config_path=str(config),
        key_map={"precision.autocast": "precision.autocast"},
    )
    assert run(sample_history(), outputs) == ExitCode.OK
    printed = capsys.readouterr()
    assert "Settings, best first" in printed.out
    assert "autocast=bfloat16  1.12x" in printed.err
    for path in (outputs.json_path, outputs.export_path, outputs.report_path):
        assert f"written to {path}" in printed.err
    assert json.loads((tmp_path / "out.json").read_text())["target"]
    assert "precision: {autocast: bfloat16}" in (tmp_path / "tuned.yaml").read_text()
    assert "autocast" in (tmp_path / "report.md").read_text()
    assert config.read_text() == "precision: {autocast: none}\n"


def test_json_on_standard_output_is_alone_there(run, capsys):
    assert run(cpu_history(), Outputs(json_path="-"), cpu_request()) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["schema"] == 2
    assert "Settings, " in printed.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_session_and_what_was_measured_is_written(run, number, tmp_path, capsys):
    playback = Playback(cancelled_history(), wait=True)
    before = signal.getsignal(number)

    def interrupt():
        playback.waiting.wait(30)
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # as when a parent passes on what the terminal sent already

    threading.Thread(target=interrupt).start()
    outputs = Outputs(json_path=str(tmp_path / "out.json"), export_path=str(tmp_path / "tuned.yaml"))
    assert run(playback, outputs) == ExitCode.INTERRUPTED
    assert playback.cancelled.is_set()
    assert signal.getsignal(number) is before
    assert len(json.loads((tmp_path / "out.json").read_text())["trials"]) >= 1
    printed = capsys.readouterr()
    assert printed.err.count("stopping; what was measured is kept") == 1
    assert "without settings: nothing could be judged" in printed.err


class Closed(io.StringIO):
    """A stream whose reader has left."""

    def write(self, text):
        raise BrokenPipeError


def test_files_are_written_also_when_nobody_reads_the_output(run, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdout", Closed())
    monkeypatch.setattr("sys.stderr", Closed())
    outputs = Outputs(json_path="-", export_path=str(tmp_path / "tuned.yaml"))
    with pytest.raises(BrokenPipeError):
        run(sample_history(), outputs)
    assert "channels_last" in (tmp_path / "tuned.yaml").read_text()


def test_a_second_interrupt_leaves_at_once(run, monkeypatch, capsys):
    monkeypatch.setattr("advisor.process.interrupts.SAME_SIGNAL_S", 0.0)
    playback = Playback(cancelled_history(), wait=True)
    playback.cancel = lambda: None

    def interrupt():
        playback.waiting.wait(30)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run(playback)
    playback.emit = lambda event: None  # its last event may come after the test
    playback.cancelled.set()


def test_a_session_that_failed_raises_its_error_and_leaves_the_json(run, tmp_path, capsys):
    outputs = Outputs(json_path=str(tmp_path / "out.json"), export_path=str(tmp_path / "tuned.yaml"))
    with pytest.raises(AdvisorError) as caught:
        run(failed_history(), outputs)
    assert caught.value.exit_code == ExitCode.TARGET
    assert (caught.value.message, caught.value.hint) == ("mymodel has no 'build'", "It defines: make, train.")
    assert json.loads((tmp_path / "out.json").read_text())["error"]["message"] == "mymodel has no 'build'"
    assert not (tmp_path / "tuned.yaml").exists()
    assert capsys.readouterr().out == ""


def test_the_command_prints_a_failure_as_two_lines_after_the_progress(monkeypatch, capsys):
    monkeypatch.setattr("advisor.headless.run.open_session", Playback(failed_history()))
    assert main(["mymodel:build", "--headless"]) == 3
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "perf-advisor: mymodel has no 'build'",
        "It defines: make, train.",
    ]


def test_a_session_that_ends_without_a_word_is_our_bug(run, capsys):
    with pytest.raises(AdvisorError) as caught:
        run([events.StageStarted("baseline")] * 2)
    assert caught.value.exit_code == ExitCode.BUG


def test_one_output_that_fails_does_not_keep_the_others_from_being_written(tmp_path):
    state = SessionState.of(sample_history())
    outputs = Outputs(json_path=str(tmp_path / "gone" / "out.json"), export_path=str(tmp_path / "tuned.yaml"))
    written = write_outputs(state, sample_request(), outputs, load_catalog())
    assert len(written.errors) == 1
    assert written.sentences[0] == f"Settings written to {tmp_path / 'tuned.yaml'}."
    assert written.sentences[-1].startswith("  step = tuning.train_step(model, optimizer, loss)")
    assert "channels_last" in (tmp_path / "tuned.yaml").read_text()


def test_a_stack_that_was_not_measured_is_not_exported():
    failed = replace(first(events.StackMeasured).record, result=TrialResult(Outcome.OUT_OF_MEMORY), comparison=None)
    assert settings_to_export(SessionState.of([events.StackMeasured(failed)])) == {}
    assert settings_to_export(SessionState.of(sample_history()))["precision.autocast"] == "bfloat16"


def test_an_export_that_is_not_faster_says_so(tmp_path):
    state = SessionState.of(sample_history())
    noise = replace(state.stack.comparison, ci_low=0.99)
    slower = replace(noise, speedup=0.9, ci_low=0.89, ci_high=0.91)
    for found, said in ((noise, "it is unclear whether they are faster"), (slower, "not measurably faster")):
        state.apply(events.StackMeasured(replace(state.stack, comparison=found)))
        written = write_outputs(state, sample_request(), Outputs(export_path=str(tmp_path / "t.yaml")), load_catalog())
        assert said in written.sentences[0]


def traced(path):
    """A session whose profile left a trace."""
    state = SessionState.of(sample_history())
    state.apply(events.FactsFound(replace(state.facts, profile=replace(state.facts.profile, trace_path=str(path)))))
    return state


@pytest.fixture
def kept_trace(tmp_path):
    path = tmp_path / "000-baseline.trace.json.gz"
    path.write_bytes(b"gzipped")
    return path


def test_the_trace_is_copied(tmp_path, kept_trace):
    path = tmp_path / "step.json.gz"
    written = write_outputs(traced(kept_trace), sample_request(), Outputs(trace_path=str(path)), load_catalog())
    assert (written.sentences, written.errors) == ((f"Trace written to {path}.",), ())
    assert path.read_bytes() == kept_trace.read_bytes()


def test_a_session_that_ended_before_its_profile_says_so(tmp_path):
    state = SessionState.of([events.StageStarted("baseline")])
    outputs = Outputs(trace_path=str(tmp_path / "step.json.gz"))
    written = write_outputs(state, sample_request(), outputs, load_catalog())
    assert written.sentences == ("The session ended before its profile, so there is no trace to write.",)
    assert not (tmp_path / "step.json.gz").exists()


def test_a_trace_that_is_gone_is_an_error_of_two_lines(tmp_path, kept_trace):
    kept_trace.unlink()
    outputs = Outputs(trace_path=str(tmp_path / "step.json.gz"), export_path=str(tmp_path / "tuned.yaml"))
    [error] = write_outputs(traced(kept_trace), sample_request(), outputs, load_catalog()).errors
    assert "the trace" in error.message
    assert "Measure again" in error.hint
    assert (tmp_path / "tuned.yaml").exists()
