"""A session that is taken up measures what it measured, or says what changed and refuses."""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, time
from pprint import pformat

import pytest
from msgspec import structs
from planted import TINY_TARGET
from real_session import Run, short_trials
from sample_session import cancelled_history, sample_request

from advisor.cli import grammar
from advisor.cli import main as cli
from advisor.errors import UsageError
from advisor.experiment import events
from advisor.experiment.past.journal import Journal, open_session, sessions_folder
from advisor.experiment.past.sameness import check_same_machine, differences
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.files.config_file import read_config
from advisor.records import TargetSpec
from advisor.source.prints import SourceWatch, changed_sources, fingerprint

ODD = """
run: 2024-01-02
at: 2024-01-02 03:04:05+01:00
kinds: !!set {a, b}
labels: {0: cat, 1: dog, 2.5: bird, true: yes, null: none}
raw: !!binary aGVsbG8=
pair: !!python/tuple [1, 2]
rate: 1e-3
nan: .nan
"""


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def recorded(history=(), **target):
    request = sample_request()
    request = replace(request, target=replace(request.target, directory=os.getcwd(), **target))  # noqa: PTH109
    journal = Journal.create(replace(request, config_path=os.path.abspath("c.yaml") if "config" in target else None))  # noqa: PTH100
    for event in history or cancelled_history():
        journal.record(event)
    journal.close()
    return journal.session_id


def taken_up(*arguments):
    return grammar.parse(arguments).wanted()


def write(text, name="c.yaml"):
    with open(name, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(text)
    return name


def in_order(value):
    """The text of a value: as its repr, but sets are sorted."""
    return pformat(value, width=1, sort_dicts=False)


# --- the config is kept without loss --------------------------------------------------------------------------


def test_the_types_of_a_config_survive_a_session():
    config = read_config(write(ODD))
    recorded(config=config)
    kept = open_session().request.target.config
    assert in_order(kept) == in_order({**config, "pair": [1, 2]})
    assert kept["labels"][0] == "cat"
    assert kept["at"] == datetime(2024, 1, 2, 2, 4, 5, tzinfo=UTC)


def test_a_value_that_no_file_has_is_recorded_as_text():
    recorded(config={"begins": time(1, 2), "how": {"often": 3}})
    assert open_session().request.target.config == {"begins": "01:02:00", "how": {"often": 3}}


def test_a_config_of_version_0_1_is_read():
    session = recorded(config={"a": 1})
    path = sessions_folder() / f"{session}.jsonl"
    header, _, rest = path.read_text().partition("\n")
    config = {"mapping": [["lr", 0.1], ["on", {"date": "2024-01-02"}], ["of", {"tuple": [{"mapping": [[1, None]]}]}]]}
    path.write_text(json.dumps(json.loads(header) | {"config": config}) + "\n" + rest)
    assert open_session().request.target.config == {"lr": 0.1, "on": "2024-01-02", "of": [{1: None}]}


@pytest.mark.parametrize(
    "damaged", ["a: [", "- 1", "!!timestamp soon", {"mapping": 3}, {"x": 1}, {}, {"mapping": [[1]]}]
)
def test_a_damaged_config_makes_the_session_unreadable_and_no_traceback(damaged):
    session = recorded(config={"a": 1})
    path = sessions_folder() / f"{session}.jsonl"
    first, _, rest = path.read_text().partition("\n")
    path.write_text(json.dumps({**json.loads(first), "config": damaged}) + "\n" + rest)
    with pytest.raises(UsageError, match="cannot be read"):
        open_session(session)


def test_differences_are_told_by_name_and_type():
    told = differences({"a": {"b": 1}, "c": [1, 2], 0: "x"}, {"a": {"b": True}, "c": [1, 3], "d": 1})
    assert told == ["a.b is True (was 1)", "c[1] is 3 (was 2)", "[0] is gone", "d is new"]


# --- what changed is said, and the session refused ------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--batch-size", "1024"), "--batch-size is 1024, and was 16"),
        (("--mode", "infer"), "--mode is infer, and was not given"),
        (("--device", "cpu"), "--device is cpu, and was auto"),
        (("--input", "4x3"), "--input is 4x3, and was not given"),
    ],
)
def test_another_option_of_the_workload_is_refused(given, told, capsys):
    session = recorded(batch_size=16)
    assert cli.main(["mymodel:build", "--resume", session, *given]) == 2
    wrong, what_to_do = capsys.readouterr().err.splitlines()
    assert told in wrong
    assert "--anew" in what_to_do


def test_it_is_measured_anew_when_asked(capsys):
    recorded(batch_size=16)
    request, past = taken_up("mymodel:build", "--resume", "--anew", "--batch-size", "1024")
    assert past is None
    assert request.target.batch_size == 1024
    assert "measuring anew" in capsys.readouterr().err
    assert taken_up("mymodel:build", "--resume", "--anew")[1] is not None  # nothing changed


def test_the_same_and_what_only_steers_the_search_are_taken_up():
    recorded(batch_size=16)
    request, past = taken_up("mymodel:build", "--resume", "--batch-size", "16", "--only", "autocast")
    assert past is not None
    assert request.only == ("autocast",)


def test_a_session_that_measured_nothing_takes_any_option():
    recorded([events.StageStarted("baseline")], batch_size=16)
    assert taken_up("mymodel:build", "--resume", "--batch-size", "4")[1] is not None


def test_a_config_that_changed_is_refused_with_its_values():
    recorded(config=read_config(write("optimizer: {lr: 0.1}\nlabels: {0: cat}\n")))
    assert taken_up("--resume")[1] is not None
    write("optimizer: {lr: 0.2}\nlabels: {0: cat}\n")
    with pytest.raises(UsageError, match=r"of the config optimizer\.lr is 0\.2 \(was 0\.1\)"):
        taken_up("--resume")
    with pytest.raises(UsageError, match=r"optimizer\.lr is 0\.2"):
        taken_up("mymodel:build", "--resume", "--config", "c.yaml")
    assert taken_up("--resume", "--anew")[0].target.config["optimizer"] == {"lr": 0.2}


def test_a_config_that_is_gone_is_taken_from_the_session():
    recorded(config=read_config(write(ODD)))
    os.remove("c.yaml")  # noqa: PTH107
    request, past = taken_up("--resume")
    assert past is not None
    assert request.target.config["labels"][0] == "cat"


def facts_with(history, sources):
    return [
        structs.replace(event, facts=replace(event.facts, sources=sources))
        if isinstance(event, events.FactsFound)
        else event
        for event in history
    ]


def test_a_source_that_changed_is_refused():
    path = os.path.realpath(write("x = 1\n", "net.py"))
    recorded(facts_with(cancelled_history(), {path: fingerprint(path)}))
    assert taken_up("--resume")[1] is not None
    write("x = 2\n", "net.py")
    with pytest.raises(UsageError, match=r"net\.py has changed"):
        taken_up("--resume")
    os.remove("net.py")  # noqa: PTH107
    with pytest.raises(UsageError, match=r"net\.py is gone"):
        taken_up("--resume")
    write("x = 1\n", "net.py")
    assert taken_up("--resume")[1] is not None


def test_another_device_or_version_than_the_sessions_is_refused():
    facts = SessionState.of(cancelled_history()).facts
    check_same_machine(facts, facts)
    other = replace(facts, versions={**facts.versions, "torch": "9.9"}, workload=replace(facts.workload, batch_size=3))
    with pytest.raises(UsageError, match=r"the PyTorch is 9\.9, and was .*; the batch size is 3, and was"):
        check_same_machine(facts, other)


# --- while a session runs -------------------------------------------------------------------------------------


def test_a_file_that_changes_is_noticed_once(tmp_path):
    path = write("x = 1\n", "net.py")
    watch = SourceWatch({path: fingerprint(path)})
    assert watch.changed() == ()
    os.utime(path, (1, 1))  # touched, and the same
    assert watch.changed() == ()
    write("x = 22\n", "net.py")
    assert watch.changed() == (path,)
    assert watch.changed() == ()
    assert changed_sources({path: "", "gone.py": fingerprint(path)}) == (path, "gone.py")


LOCAL = TINY_TARGET.replace("def build():\n", "def build():\n    import local_net\n")


@pytest.mark.process
@pytest.mark.parametrize("built_once", [True, False])
def test_a_session_knows_the_modules_it_measured_and_says_when_one_changes(tmp_path, built_once):
    write("WIDTH = 16\n", "local_net.py")
    text = (
        LOCAL if built_once else LOCAL + "\nimport threading\nthreading.Thread(target=threading.Event().wait).start()\n"
    )
    with short_trials():
        run = Run(tmp_path, text, only=("zero_grad",), budget_s=30.0)
        run.when(lambda event: isinstance(event, events.FactsFound), lambda: write("WIDTH = 32\n", "local_net.py"))
        run.run_until(lambda event: isinstance(event, events.Said) and "local_net.py has changed" in event.text)
    sources = run.posted(events.FactsFound)[0].facts.sources
    assert set(sources) == {os.path.realpath("target.py"), os.path.realpath("local_net.py")}
    assert [event for event in run.posted(events.Said) if "local_net.py has changed" in event.text]
    with pytest.raises(UsageError, match=r"local_net\.py has changed"):
        taken_up("--resume")


@pytest.mark.process
def test_a_refused_baseline_leaves_the_record_as_it_was(tmp_path):
    """The model has become another one without any file of the user's: by the environment, say."""
    with short_trials():
        first = Run(tmp_path, TINY_TARGET, only=("zero_grad",))
        first.run_until(lambda event: isinstance(event, events.TrialMeasured))
        first.journal.close()
        past = open_session()
        facts = replace(SessionState.of(past.events).facts, versions={"torch": "0.1"})
        past = replace(past, events=(*past.events, events.FactsFound(facts)))
        again = Run(tmp_path, TINY_TARGET, past=past, only=("zero_grad",)).run()
        again.journal.close()
    (failed,) = again.posted(events.SessionFailed)
    assert "the PyTorch is" in failed.message
    assert SessionState.of(open_session().events).failure is None
    assert Request(TargetSpec("a", "b")).target.config is None
