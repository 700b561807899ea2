"""Help, and the scripts with which shells complete."""

import shutil
import subprocess

import pytest
from sample_session import journaled, sample_history

from advisor.cli.commands.completion import script_for
from advisor.cli.commands.measure import measure_parser
from advisor.cli.grammar import COMMANDS, parse
from advisor.cli.options import TOPICS
from advisor.errors import UsageError
from advisor.records.kinds import Objective, Shell

OPTIONS = {name for action in measure_parser("")._actions for name in action.option_strings if name.startswith("--")}


def shown(capsys, *arguments):
    assert parse(arguments)() == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("word", ["help", "--help"])
def test_the_help_has_every_option_by_topic(word, capsys):
    with pytest.raises(SystemExit):
        parse([word])
    text = capsys.readouterr().out
    assert [name for name in (*(f"{topic}: " for topic in TOPICS), *OPTIONS) if name not in text] == []


@pytest.mark.parametrize("shell", Shell)
def test_a_script_completes_all_options_and_commands(shell, capsys):
    text = shown(capsys, "completion", shell.value)
    assert [name for name in (*OPTIONS, *COMMANDS) if name.removeprefix("--") not in text] == []


def completed(*words):
    script = script_for(Shell.BASH, tuple(COMMANDS))
    quoted = " ".join(f"'{word}'" for word in words)
    ask = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _perf_advisor; echo ${{COMPREPLY[*]}}"
    ran = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
class TestInBash:
    def test_values(self):
        assert completed("perf-advisor", "demo", "--objective", "") == {each.value for each in Objective}

    def test_options(self):
        assert completed("perf-advisor", "demo", "--bud") == {"--budget"}

    def test_recipes_and_sessions(self, monkeypatch, tmp_path):
        monkeypatch.setenv("PERF_ADVISOR_STATE", str(tmp_path))
        assert completed("perf-advisor", "demo", "--only", "autoc") == {"autocast"}
        assert completed("perf-advisor", "open", "") == set()
        session_id = journaled(sample_history())
        assert completed("perf-advisor", "open", "") == completed("perf-advisor", "--resume", "") == {session_id}

    def test_commands(self):
        assert "recipes" in completed("perf-advisor", "rec")


def test_another_shell_is_refused():
    with pytest.raises(UsageError):
        parse(["completion", "tcsh"])()
