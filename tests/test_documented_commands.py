"""Every command of the README and of docs/ is run, through the command line and to its end, with trials made up."""

import shlex
from pathlib import Path

import pytest
import torch
from facts import cpu_facts
from fake_trials import FakeTrials
from made_up import product
from test_readme import COMMANDS, ELSEWHERE, ROOT, write_files

from advisor.cli.main import main
from advisor.errors import ExitCode
from advisor.experiment.past.journal import Journal, list_sessions
from advisor.experiment.session import Session
from advisor.recipe.settings import Settings
from advisor.records import Mode

# Where this is lacking, the command says so in place of measuring.
LACKS = {"--gpus": "visible", "perf-advisor open": "terminal"}
SPEED = product(autocast=1.5, half_weights=1.4)


class Trials(FakeTrials):
    """Trials of whatever is asked for, and their clock."""

    def __init__(self):
        super().__init__(SPEED, trial_s=50.0)  # few of them fit a budget

    @staticmethod
    def prepare():
        """Nothing has to be imported in advance."""


def on_fake_trials(request, past, emit):
    trials = Trials()
    trials.facts = cpu_facts(mode=request.target.mode or Mode.TRAIN)
    journal = Journal.create(request) if past is None else Journal(past.path)
    return Session(request, trials, emit, journal, past=past, clock=trials)


def write_settings():
    """A settings file that names no target: those of another one are neither replaced nor checked."""
    settings = Settings({"step.zero_grad": "zeros"}).to_yaml()
    Path("tuned.yaml").write_text(f"# Made by perf-advisor.\n{settings}", encoding="utf-8")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with the documents' files and two recorded sessions; the words that stand for them, and for a target."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("documents")
        patch.setenv("PERF_ADVISOR_STATE", str(folder / "state"))
        patch.setattr("advisor.headless.run.open_session", on_fake_trials)
        patch.setattr("advisor.runner.trials.Runner", Trials)
        patch.chdir(folder)
        write_files()
        torch.export.save(torch.export.export(torch.nn.Linear(4, 2), (torch.randn(2, 4),)), "model.pt2")
        write_settings()
        assert [main(["mymodel:build"]) for _ in range(2)] == [ExitCode.OK] * 2
        yield dict(
            zip("AB", (one.session_id for one in list_sessions()), strict=True), TARGET="mymodel:build", ID="tf32"
        )


def words_of(command, stands_for):
    """The words that a shell gives to the program; paths into this repository are found from anywhere."""
    words = shlex.split(command.partition(" | ")[0])[1:]
    ours = ("tests/", "examples/train.py")
    return [str(ROOT / word) if word.startswith(ours) else stands_for.get(word, word) for word in words]


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in ELSEWHERE])
def test_a_documented_command_runs(recorded, command, capsys):
    write_settings()
    try:
        code = main(words_of(command, recorded))
    except SystemExit as exited:  # --help
        code = exited.code
    said = capsys.readouterr()
    lacks = next((what for part, what in LACKS.items() if part in command), None)
    if code == ExitCode.USAGE and lacks:
        assert lacks in said.err
    else:
        assert code == ExitCode.OK, said.err[-800:]
        assert (said.out + said.err).strip()
