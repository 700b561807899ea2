import json
import math
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from sample_session import (
    cancelled_history,
    cpu_history,
    failed_history,
    sample_history,
    sample_request,
    several_gpus_history,
    written,
)

from advisor.errors import UsageError
from advisor.experiment import events
from advisor.experiment.past.journal import Journal, list_sessions, open_session, sessions_folder
from advisor.experiment.scaling_records import ScalingRecord, ScalingRow
from advisor.experiment.state import SessionState
from advisor.records import Block, Candidate, Outcome, TrialRecord, TrialResult, Verification


def runs_history():
    """The events that a resumed session reads: a run, a failed run, blocks timed in turn, and a verified export."""
    settings, blocks = {"precision.autocast": "bfloat16", "a.b": 1}, (Block(10, 80, 0.5), Block(10, 80, 0.25))
    measured = TrialResult(Outcome.MEASURED, blocks=blocks, losses=(1.0, math.inf))
    return [
        events.RunMeasured({}, measured),
        events.RunMeasured(settings, TrialResult(Outcome.CRASHED, "it ended", details="signal 9")),
        events.TurnsMeasured(settings, blocks[::-1], measured),
        events.ExportVerified(Verification("tuned.yaml", 1.9, 26.3, 13.8, 1.97, 12.0)),
        events.ScalingMeasured(ScalingRecord(2, "cuda", settings, rows=(ScalingRow("one GPU", {}, 1),))),
    ]


HISTORIES = {
    "finished": sample_history,
    "runs": runs_history,
    "on the CPU": cpu_history,
    "several GPUs": several_gpus_history,
    "failed": failed_history,
    "cancelled": cancelled_history,
}
UNRECORDED = (events.BlockTimed, events.Paused, events.ProgressMade, events.TrialActivity)
pytestmark = pytest.mark.usefixtures("own_state")


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_a_session_is_read_as_it_was_written(history):
    journal = written(history())
    past = open_session()
    assert past.session_id == journal.session_id
    assert past.request == sample_request()
    own = str(journal.path.with_suffix(""))
    assert list(past.events) == [moved(event, own) for event in history() if not isinstance(event, UNRECORDED)]


def test_a_session_of_version_0_1_is_read_without_its_noise_floor():
    """That version had 95 % intervals and a separate noise floor; its runs have no spread."""
    journal = written()

    def as_before(data):
        if isinstance(data, list):
            return [as_before(one) for one in data]
        if not isinstance(data, dict):
            return data
        data = {key: as_before(value) for key, value in data.items() if key not in ("half_width", "turns_of")}
        if "ci_low" in data or "energy_floor" in data:
            data["noise_floor"] = 0.006
        if "memory_limit_bytes" in data:
            data["keep_speed"] = 0.8
        return data | ({"off_by": 0.0, "waited": None} if "blocks" in data else {})

    told = [event for event in [*sample_history(), *runs_history()] if not isinstance(event, UNRECORDED)]
    lines = [{"event": type(e).__name__, "at": 1.0, "data": as_before(msgspec.to_builtins(e))} for e in told]
    with journal.path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
        file.write(json.dumps({"event": "GpusChosen", "at": 1.0, "data": {"gpus": 2}}) + "\n")
    past = open_session()
    assert [type(event) for event in past.events] == [type(event) for event in told]
    assert past.damage == ""
    before, now = SessionState.of(told), SessionState.of(past.events)
    assert now.stack.comparison == before.stack.comparison
    assert now.baseline.step_ms == before.baseline.step_ms


def moved(event, folder):
    """The event of a session whose files lie in this folder."""
    text = json.dumps(msgspec.to_builtins(event)).replace("/tmp/sample", folder)
    return msgspec.convert(json.loads(text), type(event))


def test_every_kind_of_event_is_among_them():
    assert {type(event) for history in HISTORIES.values() for event in history()} == set(events.KINDS.values())


def test_losses_that_are_not_finite_and_the_types_of_settings_survive():
    settings = {"a.a": True, "a.b": 1, "a.c": 1.0, "a.d": "1", "a.e": ""}
    result = TrialResult(Outcome.NON_FINITE, losses=(1.0, math.nan, -math.inf))
    written([events.TrialMeasured(TrialRecord(Candidate("a", "a.a", True), settings, result))])
    (event,) = open_session().events
    assert event.record.result.losses == pytest.approx(result.losses, nan_ok=True)
    assert [(type(value), value) for value in event.record.settings.values()] == [
        (type(value), value) for value in settings.values()
    ]


def test_older_journals_are_read_with_the_word_that_people_read():
    names = (
        "stack: a: 1",
        "stack, confirmed",
        "stack without a",
        "baseline, beside the stack",
        "my stack",
        "the stacker",
    )
    written([*(events.Said(name) for name in names), events.StageStarted("stack")])
    *said, stage = open_session().events
    assert ["stack" in one.text for one in said] == [False, False, False, False, True, True]
    assert stage.stage == "stack"


def test_text_of_any_kind_stays_on_its_line():
    said = events.Said("one\ntwo\u2028three\x85four é 😀 \ud800")
    written([said, events.StageStarted("done")])
    assert list(open_session().events) == [said, events.StageStarted("done")]


def test_an_event_is_on_disk_before_the_journal_is_closed():
    journal = Journal.create(sample_request())
    journal.record(events.StageStarted("trials"))
    assert list(open_session().events) == [events.StageStarted("trials")]
    journal.close()


@pytest.mark.parametrize("cut", [0, 1, 10, 40])
def test_what_follows_a_cut_line_can_be_read(cut):
    journal = written([events.StageStarted("one"), events.StageStarted("two")])
    text = journal.path.read_bytes()
    journal.path.write_bytes(text[: len(text) - cut])
    again = Journal(journal.path)
    again.record(events.StageStarted("resumed"))
    again.close()
    stages = [event.stage for event in open_session().events if isinstance(event, events.StageStarted)]
    assert stages == (["one", "two", "resumed"] if cut <= 1 else ["one", "resumed"])
    assert bool(open_session().damage) == (cut > 1)


@pytest.mark.parametrize(
    "line",
    [
        b'{"event": "FromTheFuture", "data": {}}',
        b"\xff\xfe",
        b'{"event": "StageStarted", "data": {"stage": "o\x00e"}}',
        b"[" * 100_000,
        b'{"event": "StageStarted", "at": 1' + b"0" * 5000 + b', "data": {"stage": 7}}',
    ],
)
def test_a_line_that_cannot_be_read_is_left_out_alone_and_told(line):
    journal = written([events.StageStarted("one"), events.StageStarted("two")])
    lines = journal.path.read_bytes().splitlines()
    journal.path.write_bytes(b"\n".join([*lines[:2], line, *lines[2:], b""]))
    past = open_session()
    assert past.damage.startswith("1 line of the journal")
    assert list(past.events) == [
        events.Said(
            f"1 line of the journal of {past.session_id} cannot be read; measurements may be missing", "warning"
        ),
        events.StageStarted("one"),
        events.StageStarted("two"),
    ]


def test_a_journal_of_another_form_is_not_read():
    journal = written()
    journal.path.write_text(journal.path.read_text().replace('"schema":1', '"schema":2'))
    with pytest.raises(UsageError, match="it has the form 2, and not 1"):
        open_session()


HOLDS = """
import sys
from pathlib import Path
from advisor.experiment.past.journal import Journal
journal = Journal(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_one_process_writes_at_a_time():
    path = written().path
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UsageError, match=f"is being written by another process, {holder.pid}"):
        Journal(path)
    holder.kill()
    holder.communicate()
    Journal(path).close()


def test_a_full_disk_ends_the_journal_and_is_told_once():
    journal = Journal.create(sample_request())
    journal._file.close()
    journal._file = Path("/dev/full").open("a")  # noqa: SIM115 - the journal closes it
    assert "No space" in journal.record(events.StageStarted("one"))
    assert journal.record(events.StageStarted("two")) == ""
    journal.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null\n",
        "not json\n",
        '{"schema": 1, "started": 1e300, "request": {"target": {"target": "a", "directory": "/"}}}\n',
        '{"schema": 1, "started": 1.0, "request": {"target": 3}}\n',
        b"\xff\xfe",
    ],
)
def test_journals_that_cannot_be_read(text):
    readable = written([events.StageStarted("one")])
    path = sessions_folder() / "20010101-000000.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match="20010101-000000 cannot be read: the first line of its journal is damaged"):
        open_session("2001")
    assert [past.session_id for past in list_sessions()] == [readable.session_id]


def test_sessions_are_found_by_their_beginning():
    for name in ("20250101-120000", "20250102-120000", "20250102-120000-1", "20250103-090000"):
        written().path.rename(sessions_folder() / f"{name}.jsonl")
    assert open_session().session_id == "20250103-090000"
    assert open_session("20250101").session_id == "20250101-120000"
    assert open_session("20250102-120000").session_id == "20250102-120000"
    assert open_session("20250102-120000-1").session_id == "20250102-120000-1"
    with pytest.raises(UsageError, match="beginning of 2 sessions"):
        open_session("20250102")
    with pytest.raises(UsageError, match="no session '2024'"):
        open_session("2024")


def test_there_may_be_no_session():
    assert list(list_sessions()) == []
    with pytest.raises(UsageError, match="no session yet"):
        open_session()


def test_what_may_never_end_is_no_journal():
    Journal.create(sample_request()).close()
    os.mkfifo(sessions_folder() / "20300101-000000.jsonl")
    (sessions_folder() / "20300101-000001.jsonl").symlink_to("/dev/zero")
    large = sessions_folder() / "20300101-000002.jsonl"
    with large.open("wb") as file:
        file.truncate(2**34)
    with pytest.raises(UsageError, match="cannot be read: it is larger than 256 MiB"):
        open_session(large.stem)
    assert len(list(list_sessions())) == 1


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="cannot be written") as error:
        Journal.create(sample_request())
    assert "PERF_ADVISOR_STATE" in error.value.hint
