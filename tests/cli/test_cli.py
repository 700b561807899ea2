"""The command as a user runs it: exit codes, and the texts on each stream."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from sample_session import cancelled_history, failed_history, journaled, sample_history, sample_request

from advisor.cli import grammar
from advisor.cli import main as cli
from advisor.errors import ExitCode
from advisor.experiment.past.journal import open_session
from advisor.experiment.state import SessionState
from advisor.recipe import HEADINGS
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings


@pytest.fixture
def command(own_state, tmp_path, monkeypatch, capsys):
    """``perf-advisor`` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capsys.readouterr()
        code = cli.main(arguments)
        shown = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, shown.out, shown.err)

    return run


@pytest.fixture
def program(own_state, tmp_path):
    """``perf-advisor`` in a process of its own, in an empty folder."""

    def run(*arguments):
        command = [sys.executable, "-m", "advisor", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.mark.parametrize("name", ["select", "socket", "token"])
def test_a_file_of_the_folder_that_is_called_as_a_module_of_python_is_not_imported(name, program, tmp_path):
    (tmp_path / f"{name}.py").write_text("raise RuntimeError")
    done = program("recipes", "tf32")
    assert (done.returncode, done.stderr) == (0, "")


def test_starting_loads_nothing_heavy():
    code = (
        "import sys, advisor.cli.main; from advisor.cli import grammar\n"
        "grammar.parse(['mymodel:build', '--budget', '5m']); print(*sys.modules)"
    )
    imported = {*subprocess.check_output([sys.executable, "-c", code], text=True).split()}
    assert imported.isdisjoint({"torch", "textual", "rich", "numpy", "pynvml", "psutil", "msgspec"})


def test_importing_the_command_is_quick():
    """It is compared with four modules of Python in the same process: it takes a tenth of their time, numpy as much."""
    code = (
        "from time import process_time as now\n"
        "start = now(); import argparse, asyncio, http.client, unittest.mock; between = now()\n"
        "import advisor.cli.main; print((now() - between) / (between - start))\n"
    )
    assert min([float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3)]) < 0.5


def test_no_target_prints_the_commands_to_begin_with(program):
    done = program()
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("perf-advisor demo", "perf-advisor train.py", "perf-advisor mymodel:build", "perf-advisor --help"):
        assert words in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("m:b", "--bugdet", "5m"),
        ("recipes", "autocats"),
        ("report", "none"),
        ("export",),
        ("m:b", "--resume"),
        ("m:b", "--config", "nowhere.yaml"),
        ("m:b", "--config", "list.yaml"),
        ("m:b", "--config", "open.yaml"),
        ("m:b", "--config", "train.yaml", "--map", "data.batch_size=train.batch"),
    ],
)
def test_a_mistake_is_two_lines_and_exit_code_2(command, tmp_path, arguments):
    (tmp_path / "list.yaml").write_text("[1, 2]")
    (tmp_path / "open.yaml").write_text("a: [")
    (tmp_path / "train.yaml").write_text("train:\n  bs: 1\n")
    done = command(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    wrong, what_to_do = done.stderr.splitlines()
    assert wrong.startswith("perf-advisor: ")
    assert what_to_do


def test_recipes_of_a_folder_are_listed_and_broken_ones_named(command, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "broken.py").write_text("raise RuntimeError('[red]half-done')\n")
    done = command("recipes", "--recipes", "mine")
    assert done.returncode == 0
    assert "[red]half-done" in done.stderr
    assert "autocast" in done.stdout
    shown = command("recipes", "tf32", "--recipes", "mine")
    assert shown.returncode == 0
    assert "broken.py" in shown.stderr
    assert "TensorFloat-32" in shown.stdout


def test_every_card_is_shown_whole(capsys):
    for recipe in load_catalog():
        assert cli.main(["recipes", recipe.id]) == 0
        shown = capsys.readouterr()
        assert [heading for heading in HEADINGS if f"\n{heading}\n---" not in shown.out] == [], recipe.id
        assert recipe.key in shown.out
        assert not shown.err


def test_hardware_for_people_and_for_programs(command):
    assert "usable" in command("hardware").stdout
    found = json.loads(command("hardware", "--json").stdout)
    assert found["host"]["usable_cores"] >= 1
    assert found["gpus"] or found["gpu_note"]


def test_a_terminal_that_cannot_show_a_character_shows_another(program, monkeypatch):
    session_id = journaled(sample_history())
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = program("report", session_id)
    assert done.returncode == 0, done.stderr
    assert "1.97x (1.96?1.98)" in done.stdout


def test_a_reader_that_leaves_is_no_error(own_state, tmp_path):
    line = f"set -o pipefail; {sys.executable} -m advisor recipes | true"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert done.stderr == ""


def test_sessions_are_listed_with_their_results(command):
    assert "no session yet" in command("sessions").stdout
    journaled(sample_history())
    journaled(failed_history())
    journaled(cancelled_history())
    listed = command("sessions").stdout
    assert "mymodel:build" in listed
    assert "1.97x (1.96–1.98) with 3 settings" in listed  # noqa: RUF001 - an interval
    assert "failed: mymodel has no 'build'" in listed
    assert "interrupted" in listed


def test_damage_is_told_by_each_command_that_reads_a_session(command, own_state):
    good, failed, lost = journaled(sample_history()), journaled(failed_history()), journaled(sample_history())
    folder = own_state / "sessions"
    for name in (good, failed):
        with (folder / f"{name}.jsonl").open("a") as file:
            file.write("x\n")
    (folder / f"{lost}.jsonl").write_text("x\n")
    warning = "warning: 1 line of the journal of {} cannot be read; measurements may be missing.\n"
    assert warning.format(good) in command("export", good).stderr
    assert warning.format(failed) in command("report", failed).stderr
    assert warning.format(good) + warning.format(failed) in command("compare", good, failed).stderr
    shown = command("report", good)
    assert f"1 line of the journal of {good} cannot be read" in shown.stdout
    assert shown.stderr == ""
    listed = command("sessions")
    assert good in listed.stdout
    assert listed.stderr == f"warning: 1 session cannot be read: {lost}; `perf-advisor report {lost}` says why.\n"
    for name in (good, failed):
        (folder / f"{name}.jsonl").unlink()
    assert command("sessions").stdout == ""


def test_an_export_replaces_only_settings_of_the_same_target(command, tmp_path):
    file = tmp_path / "tuned.yaml"
    journaled(sample_history())
    other = replace(sample_request(), target=replace(sample_request().target, target="demo"))
    assert command("export").returncode == 0
    assert command("export").returncode == 0, "its own file is written again"
    kept = file.read_text()
    journaled(sample_history(), other)
    refused = command("export")
    assert refused.returncode == ExitCode.USAGE
    assert refused.stderr.splitlines() == [
        "perf-advisor: --export: tuned.yaml has the settings of mymodel:build, not of demo.",
        "Name another file, or add --force to replace it.",
    ]
    assert file.read_text() == kept
    assert command("demo", "--export", "tuned.yaml").returncode == ExitCode.USAGE, "before anything is measured"
    assert command("export", "--force").returncode == 0
    assert "# target: demo" in file.read_text()
    assert "has the settings of demo, not of m:b." in command("check", "tuned.yaml", "m:b").stderr
    assert command("export", "--export", "tuned.py", "--force").returncode == 0
    assert command("mymodel:build", "--export", "tuned.py").stderr.startswith("perf-advisor: --export: tuned.py has")


def test_old_sessions_are_deleted_with_their_logs(command, own_state):
    sessions = [journaled(sample_history()) for _ in range(3)]
    assert "2 sessions deleted." in command("sessions", "--keep", "1").stdout
    assert [path.stem for path in (own_state / "sessions").iterdir() if path.suffix] == sessions[-1:]
    assert command("sessions", "--keep", "0").returncode == ExitCode.USAGE


def test_a_session_with_a_config_is_exported_as_settings_and_its_map_is_kept_for_the_config(command, tmp_path):
    config = tmp_path / "train.yaml"
    config.write_text("# mine\namp: float32\n")
    given = replace(sample_request(), config_path=str(config), key_map={"precision.autocast": "amp"})
    journaled(sample_history(), given)
    done = command("export", "--export", "new.yaml")
    assert done.returncode == 0, done.stderr
    assert Settings.from_file(tmp_path / "new.yaml") == SessionState.of(sample_history()).stack_settings
    done = command("export", "--export", "patched.yaml", "--config", "train.yaml")
    assert done.returncode == 0, done.stderr
    patched = (tmp_path / "patched.yaml").read_text()
    assert "# mine\namp: bfloat16\n" in patched
    assert "channels_last" in patched
    assert config.read_text() == "# mine\namp: float32\n"


def test_an_interrupted_session_exports_no_settings_and_says_so(command, tmp_path):
    journaled(cancelled_history())
    done = command("export")
    assert done.returncode == 0
    assert "without settings" in done.stderr
    assert (tmp_path / "tuned.yaml").read_text().endswith("{}\n")


def test_a_session_is_shown_again_and_its_json_goes_alone_to_standard_output(command):
    session_id = journaled(sample_history())
    assert "Settings, best first" in command("report", session_id).stdout
    done = command("report", session_id, "--json", "-")
    assert json.loads(done.stdout)["schema"] == 2
    assert "Settings, " in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ImportError("no such name"), ExitCode.USAGE, ("is missing, broken or too old: ImportError: no", "pip check")),
        (
            ZeroDivisionError("oh\nno"),
            ExitCode.BUG,
            ("this is a bug of ours: ZeroDivisionError: oh no", "report it", "Traceback"),
        ),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, ()),
    ],
)
def test_an_error_is_told_by_its_cause(monkeypatch, capsys, error, code, words):
    def run(_):
        raise error

    monkeypatch.setattr(grammar, "parse", run)
    assert cli.main(["demo"]) == code
    lines = capsys.readouterr().err.splitlines()[:3]
    assert len(lines) == len(words)
    assert all(word in line for word, line in zip(words, lines, strict=True))


def test_a_working_directory_that_was_removed_is_told(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert cli.main(["demo"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == "perf-advisor: the working directory was removed."


def test_the_arguments_of_a_target_are_kept(own_state, capsys):
    asked = sample_request()
    asked = replace(asked, target=replace(asked.target, arguments=("--lr", "0.1")))
    first = journaled(cancelled_history(), asked)

    def request_of(*arguments):
        return grammar.parse(arguments).wanted()[0]

    assert request_of("--resume") == asked
    assert request_of("--resume", "--only", "compile").only == ("compile",)
    assert request_of("mymodel:build", "--resume").target.arguments == ("--lr", "0.1")
    assert request_of("mymodel:build", "--resume", first, "--", "--lr", "0.1").target.arguments == ("--lr", "0.1")
    for named in (["mymodel:build", "--resume"], ["mymodel:build", "--resume", first], ["--resume"]):
        assert cli.main([*named, "--", "--lr", "0.2"]) == 2
        assert "mymodel:build -- --lr 0.2" in capsys.readouterr().err
    assert cli.main(["sessions"]) == 0
    assert "mymodel:build -- --lr 0.1" in capsys.readouterr().out


def test_a_session_of_another_target_is_refused(own_state, capsys):
    session_id = journaled(cancelled_history())
    assert grammar.parse(["mymodel:build", "--resume"]).wanted()[1].session_id == session_id
    assert grammar.parse(["--resume"]).wanted() == (sample_request(), open_session(session_id))
    assert cli.main(["other:build", "--resume", session_id]) == 2
    assert "measured mymodel:build, not other:build" in capsys.readouterr().err
    assert cli.main(["other:build", "--resume"]) == 2
