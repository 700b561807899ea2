"""Secrets and files: nothing that looks secret is recorded or shown, and only the session's files are read."""

import os
import stat
from dataclasses import replace

import pytest
from msgspec import structs
from planted import plant
from sample_session import sample_history, sample_request, written

from advisor.cli import grammar
from advisor.cli import main as cli
from advisor.experiment import events
from advisor.experiment.past.journal import open_session
from advisor.files.folders import make_private, state_folder, write_record
from advisor.records.secrets import arguments_without_secrets, names_a_secret


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(tmp_path / "above" / "state"))
    monkeypatch.chdir(tmp_path)


def recorded(history=(), **changes):
    request, folders = sample_request(), changes.pop("recipe_folders", ())
    request = replace(request, target=replace(request.target, **changes), recipe_folders=folders)
    return written(history or sample_history(), request)


SECRETS = """password db_password hf_token HF_TOKEN hubToken token api_key apiKey API-KEY secrets client.secret
    aws_secret_access_key wandb_api_key credentials Authorization private_key"""
NO_SECRETS = """pad_token max_tokens token_dim num_tokens tokenizer key key_dim keys eos_token_id lr max_new_tokens
    tokens author key_padding_mask secretary"""


def test_names_of_secrets_and_of_a_models_settings():
    assert [name for name in SECRETS.split() if not names_a_secret(name)] == []
    assert [name for name in NO_SECRETS.split() if names_a_secret(name)] == []


def test_secrets_of_a_command_line_are_hidden():
    given = ("--api-key", "abc", "--token=xyz", "hub.password=p", "--lr", "0.1", "sk-abcdefghijklmnopqrst", "--token")
    shown, withheld = arguments_without_secrets(given)
    assert shown == ("--api-key", "***", "--token=***", "hub.password=***", "--lr", "0.1", "***", "--token")
    assert withheld == ("--api-key", "--token", "hub.password", "0.1")


def everything_below(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_no_config_is_written():
    recorded(config={"hub": {"token": "opensesame"}, "lr": 0.1234})
    assert not any(value in everything_below(state_folder()) for value in (b"opensesame", b"0.1234"))


def test_arguments_with_secrets_are_given_again(tmp_path, capsys):
    journal = recorded(arguments=("--api-key", "opensesame"))
    assert b"opensesame" not in everything_below(state_folder())
    for arguments in (["--resume"], ["mymodel:build", "--resume"]):
        assert cli.main(arguments) == 2
        assert "held secrets (--api-key)" in capsys.readouterr().err
    request, past = grammar.parse(["mymodel:build", "--resume", "--", "--api-key", "opensesame"]).wanted()
    assert past.session_id == journal.session_id
    assert request.target.arguments == ("--api-key", "opensesame")
    assert cli.main(["report", "--report", "r.md", "--json", "r.json"]) == 0
    assert (
        "opensesame"
        not in capsys.readouterr().out + (tmp_path / "r.md").read_text() + (tmp_path / "r.json").read_text()
    )


def with_files(history, path):
    for event in history:
        if isinstance(event, events.FactsFound) and event.facts.profile:
            profile = replace(event.facts.profile, trace_path=path)
            yield structs.replace(event, facts=replace(event.facts, profile=profile))
        else:
            yield structs.replace(event, log_path=path) if isinstance(event, events.TrialStarted) else event


@pytest.mark.parametrize("way", ["elsewhere", "above", "link"])
def test_no_file_is_copied_or_shown_because_a_journal_names_it(tmp_path, way):
    secret = tmp_path / "secret.json.gz"
    secret.write_bytes(b"\x1f\x8bprivate")
    journal = recorded(with_files(sample_history(), str(secret)))
    folder = journal.path.with_suffix("")
    if way == "above":
        journal.path.write_text(journal.path.read_text().replace(str(secret), f"{folder}/../../../../secret.json.gz"))
    if way == "link":
        (folder / secret.name).symlink_to(secret)
    cli.main(["report", "--trace", "t.json.gz"])
    assert not (tmp_path / "t.json.gz").exists()
    told = open_session().events
    named = [
        event.facts.profile.trace_path for event in told if isinstance(event, events.FactsFound) and event.facts.profile
    ]
    named += [event.log_path for event in told if isinstance(event, events.TrialStarted)]
    assert {os.path.dirname(path) for path in named} <= {str(folder), ""}  # noqa: PTH120


def test_a_sessions_own_trace_is_found_also_where_its_folder_was_moved(tmp_path, monkeypatch):
    journal = recorded(with_files(sample_history(), "/old/place/sessions/x/001.trace.json.gz"))
    (journal.path.with_suffix("") / "001.trace.json.gz").write_bytes(b"the trace")
    assert cli.main(["report", "--trace", "t.json.gz"]) == 0
    assert (tmp_path / "t.json.gz").read_bytes() == b"the trace"


PLANTED = "RUNS = open('ran', 'a').write('x')\n"


@pytest.mark.parametrize("command", [["report", "--json", "r.json"], ["export", "--export", "t.yaml"]])
def test_no_code_runs_because_a_journal_names_its_folder(tmp_path, command, capsys):
    path = plant(tmp_path / "recipes", "planted")
    path.write_text(path.read_text() + PLANTED)
    recorded(recipe_folders=(str(tmp_path / "recipes"),))
    assert cli.main(command) == 0
    assert not (tmp_path / "ran").exists()
    assert cli.main([*command, "--recipes", str(tmp_path / "recipes")]) == 0
    assert (tmp_path / "ran").exists()


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("usual", [True, False])
def test_state_is_its_users_alone_under_any_umask(tmp_path, monkeypatch, usual):
    if usual:
        monkeypatch.delenv("PERF_ADVISOR_STATE")
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
        (tmp_path / "xdg" / "perf-advisor").mkdir(parents=True, mode=0o755)  # by an earlier version
    before = os.umask(0)
    try:
        recorded()
        write_record("hints.json", {})
    finally:
        os.umask(before)
    every = [state_folder(), *state_folder().rglob("*")]
    assert {mode(path) for path in every if path.is_dir()} == {0o700}
    assert {mode(path) for path in every if path.is_file()} == {0o600}


def test_a_folder_of_the_persons_own_keeps_its_mode(tmp_path, monkeypatch):
    own = tmp_path / "own"
    own.mkdir(mode=0o755)
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(own))
    make_private(own / "sessions")
    assert mode(own) == 0o755
    assert mode(own / "sessions") == 0o700
