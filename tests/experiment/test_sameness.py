"""A resumed session measures the same target, or refuses and says what has changed."""

import json
import os
from dataclasses import replace

import pytest
from msgspec import structs
from planted import TINY_TARGET
from real_session import Run, short_trials
from sample_session import cancelled_history, journaled, sample_request

from advisor.cli import grammar
from advisor.cli import main as cli
from advisor.errors import UsageError
from advisor.experiment import events
from advisor.experiment.past.journal import open_session, sessions_folder
from advisor.experiment.past.resuming import check_same_machine
from advisor.experiment.state import SessionState
from advisor.files.config_file import read_config
from advisor.source.prints import changed_sources, fingerprint


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def recorded(history=(), **target):
    request = sample_request()
    request = replace(request, target=replace(request.target, directory=os.getcwd(), **target))  # noqa: PTH109
    request = replace(request, config_path=os.path.abspath("c.yaml") if "config" in target else None)  # noqa: PTH100
    return journaled(history or cancelled_history(), request)


def taken_up(*arguments):
    return grammar.parse(arguments).wanted()


def write(text, name="c.yaml"):
    with open(name, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(text)
    return name


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--batch-size", "1024"), "--batch-size is 1024, and was 16"),
        (("--mode", "infer"), "--mode is infer, and was not given"),
        (("--device", "cpu"), "--device is cpu, and was auto"),
        (("--input", "4x3"), "--input is 4x3, and was not given"),
        (("--eval", "m:evaluate", "--min-score", "0.9"), "--eval or --steps is another"),
    ],
)
def test_another_option_of_the_workload_is_refused(given, told, capsys):
    assert cli.main(["mymodel:build", "--resume", recorded(batch_size=16), *given]) == 2
    wrong, what_to_do = capsys.readouterr().err.splitlines()
    assert told in wrong
    assert "leave --resume out" in what_to_do


def test_the_same_and_what_only_steers_the_search_are_taken_up():
    recorded(batch_size=16)
    request, past = taken_up("mymodel:build", "--resume", "--batch-size", "16", "--only", "autocast")
    assert past is not None
    assert request.only == ("autocast",)


def test_a_session_that_measured_nothing_takes_any_option():
    recorded([events.StageStarted("baseline")], batch_size=16)
    assert taken_up("mymodel:build", "--resume", "--batch-size", "4")[1] is not None


def test_a_config_that_changed_or_is_gone_is_refused():
    text = "optimizer: {lr: 0.1}\nlabels: {0: cat}\nfrom: 2024-01-02\nkinds: !!set {a, b}\n"
    recorded(config=read_config(write(text)))
    assert taken_up("--resume")[1] is not None
    for other in (text.replace("0.1", "'0.1'"), text.replace("cat", "dog"), text.replace("{a, b}", "{a}")):
        write(other)
        with pytest.raises(UsageError, match="the config has changed"):
            taken_up("mymodel:build", "--resume", "--config", "c.yaml")
    with pytest.raises(UsageError, match="the config has changed"):
        taken_up("--resume")
    os.remove("c.yaml")  # noqa: PTH107
    with pytest.raises(UsageError, match=r"c\.yaml"):
        taken_up("--resume")


@pytest.mark.parametrize("config", ["a: 1\n", {"mapping": [["a", 1]]}], ids=["text", "0.1"])
def test_a_journal_that_holds_its_config_goes_on(config):
    session = recorded(config=read_config(write("a: 1\n")))
    path = sessions_folder() / f"{session}.jsonl"
    header, _, rest = path.read_text().partition("\n")
    header = {key: value for key, value in json.loads(header).items() if key != "config_fingerprint"}
    path.write_text(json.dumps(header | {"config": config, "withheld": ["hub.token"]}) + "\n" + rest)
    assert len(open_session(session).events) > 1
    assert taken_up("--resume")[1] is not None


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


def test_a_file_counts_as_changed_by_its_content(tmp_path):
    path = write("x = 1\n", "net.py")
    known = {path: fingerprint(path), "gone.py": ""}
    os.utime(path, (1, 1))  # touched, and the same
    assert changed_sources(known) == ()
    write("x = 22\n", "net.py")
    assert changed_sources(known) == (path,)
    assert changed_sources({path: "", "gone.py": known[path]}) == (path, "gone.py")


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
    assert len([event for event in run.posted(events.Said) if "local_net.py has changed" in event.text]) == 1
    with pytest.raises(UsageError, match=r"local_net\.py has changed"):
        taken_up("--resume")
