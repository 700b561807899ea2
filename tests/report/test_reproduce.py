"""The report's section on how to run its session again."""

from dataclasses import replace

from sample_session import sample_history, sample_request

from advisor.cli.grammar import parse
from advisor.experiment import events
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.judging.objective import Goal
from advisor.records import TargetSpec
from advisor.report.document import Listing, Paragraph
from advisor.report.whole import reproduce_section

NAMED = [events.GoalSet(Goal(), "20261122-222304"), *sample_history()[1:]]


def test_the_session_its_date_and_its_command_are_told():
    request = replace(sample_request(), command=("mymodel:build", "--budget", "90s"))
    blocks = reproduce_section(SessionState.of(NAMED), request).blocks
    assert blocks[0] == Paragraph("Session 20261122-222304.")
    assert blocks[-1] == Listing("perf-advisor mymodel:build --budget 90s", "bash")


def test_a_session_that_no_command_line_began_has_its_name_only():
    assert reproduce_section(SessionState.of(NAMED), sample_request()).blocks == (
        Paragraph("Session 20261122-222304."),
    )


def test_the_command_is_kept_as_it_was_typed_without_secrets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    typed = [
        "m:build",
        "--gpus",
        "2",
        "--nnodes",
        "2",
        "--rdzv-endpoint",
        "a:1",
        "--",
        "--hf_token",
        "x",
        "--lr",
        "0.1",
    ]
    assert parse(typed).request.command == tuple("***" if word == "x" else word for word in typed)


def test_a_resumed_session_keeps_the_command_that_began_it():
    past = Request(TargetSpec("m:build", "/a"), command=("m:build", "--only", "tf32"))
    assert Request(TargetSpec("", "/a"), command=("--resume",)).continuing(past).command == past.command
