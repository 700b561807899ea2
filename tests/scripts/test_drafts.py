"""Drafts of a ``build()``: the lines of a script that were seen to run, as a file to complete."""

import sys
from pathlib import Path

import pytest

from advisor.cli.commands import init
from advisor.errors import TargetError, UsageError
from advisor.workloads.scripts.draft import draft_of
from scripts.steps import HEAD, STEP
from scripts.test_scripts import ARGUMENTS, HERE


def draft(name, monkeypatch):
    """The draft of one of the scripts beside this file, which is Python."""
    monkeypatch.chdir(HERE)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *ARGUMENTS.get(name, ())])
    text = draft_of(f"{name}.py", "build_it.py")
    compile(text, "build_it.py", "exec")
    return text


class TestADraft:
    @pytest.mark.parametrize(
        ("name", "has"),
        [
            (
                "public/mnist",
                (
                    "from mnist import Net",
                    "    # mnist.py:",
                    "DataLoader(dataset, **train_kwargs)",
                    "(data, target)) in [(0, ",
                ),
            ),
            (
                "public/dcgan",
                ("for (i, data) in [(0, batch)]", "models=[netD, netG], optimizers=[optimizerD, optimizerG]"),
            ),
            ("public/gpt", ("for _ in [batch]:", "loader = ...  # TODO", "copy these to here")),
        ],
    )
    def test_has_what_was_seen_and_compiles(self, name, has, monkeypatch):
        text = draft(name, monkeypatch)
        assert [part for part in has if part not in text] == []

    def test_of_a_body_beside_its_loops_head_has_the_body_only(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["train.py"])
        Path("train.py").write_text(f"{HEAD}def one(x, y):\n    {STEP}\nfor x, y in loader: one(x, y); seen = 'ä'\n")
        assert "        for (x, y) in [batch]:\n            one(x, y); seen = 'ä'\n" in draft_of("train.py", "b.py")

    def test_marks_the_imports_from_the_package_of_the_script(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["mine/train.py"])
        Path("mine").mkdir()
        Path("mine/sizes.py").write_text("SIZE = 8\n")
        own = "from .sizes import SIZE\nclass Net(nn.Linear):\n    pass\n"
        loop = f"if __name__ == '__main__':\n    for x, y in loader:\n        {STEP}\n"
        Path("mine/train.py").write_text(HEAD + own + loop)
        text = draft_of("mine/train.py", "build_it.py")
        assert "\n# TODO: write the package: from .sizes import SIZE\nfrom train import Net\n" in text

    def test_a_file_that_cannot_be_written_is_told_before_the_script_is_run(self, tmp_path):
        (tmp_path / "train.py").write_text("")
        with pytest.raises(UsageError, match="does not exist") as error:
            init.run_init([str(tmp_path / "train.py"), "--output", str(tmp_path / "nowhere" / "build.py")])
        assert error.value.message.startswith("--output: ")

    def test_refuses_to_write_over_a_file(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for file in ("train.py", "build_train.py"):
            Path(file).write_text("")
        with pytest.raises(UsageError, match="already"):
            init.run_init(["train.py"])

    def test_of_a_notebook_says_how_as_measuring_one_does(self, tmp_path):
        (tmp_path / "train.ipynb").write_text("{}")
        with pytest.raises(TargetError, match="is a notebook") as error:
            init.run_init([str(tmp_path / "train.ipynb")])
        assert "nbconvert" in error.value.hint

    @pytest.mark.process
    def test_the_command_writes_it(self, tmp_path, capsys):
        output = tmp_path / "build_it.py"
        init.run_init([str(HERE / "trainer_class.py"), "--output", str(output), "--", "--epochs", "2"])
        assert "RMSprop" in output.read_text()
        assert f"type: perf-advisor {output}\n" in capsys.readouterr().out

    @pytest.mark.process
    def test_a_script_without_a_loop_says_so(self, bad, tmp_path):
        output = tmp_path / "build.py"
        with pytest.raises(TargetError, match=r"sys.exit\(2\)") as error:
            init.run_init([str(bad("needs_arguments")), "--output", str(output)])
        assert "required: --data" in error.value.details
        assert not output.exists()

    @pytest.mark.process
    def test_a_script_that_never_gets_there_is_stopped(self, tmp_path):
        (tmp_path / "waits.py").write_text("import time\ntime.sleep(600)\n")
        with pytest.raises(TargetError, match="no update of weights within"):
            init.run_init([str(tmp_path / "waits.py"), "--budget", "3s"])
