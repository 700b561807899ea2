"""Drafts of a ``build()``: what was seen of a script, as a file to complete."""

import ast
import sys
from pathlib import Path

import pytest

from advisor.cli.commands import init
from advisor.errors import TargetError, UsageError
from advisor.target.scripts.draft import draft_of
from scripts.steps import HEAD, STEP
from scripts.test_scripts import ARGUMENTS, HERE


def draft(name, monkeypatch):
    """The draft of one of the scripts beside this file, which is Python."""
    monkeypatch.chdir(HERE)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *ARGUMENTS.get(name, ())])
    text, _ = draft_of(f"{name}.py", "build_it.py")
    compile(text, "build_it.py", "exec")
    return text


class TestADraft:
    """``perf-advisor init``: what was seen, as a file to complete."""

    @pytest.mark.parametrize(
        ("name", "has"),
        [
            ("mnist_example", ("from mnist_example import Net", "nll_loss", "batch_size=16, num_workers=2", "lr=1.0")),
            (
                "gan",
                ("def step(batch):", "for (i, real) in [(0, batch)]", "models=[model, model_2]", "Adam(model_2.par"),
            ),
            ("bad/no_loop", ("def step(batch):", "TODO: the model")),
            (
                "inference",
                ('num_workers=0)\n    return advisor.Workload(model=model.eval(), data=data, mode="infer")',),
            ),
            ("nano_gpt", ("for _ in [batch]:", "return loss\n")),
            ("flat", ("batch_size=16, num_workers=0, shuffle=True)",)),
        ],
    )
    def test_has_what_was_seen_and_compiles(self, name, has, monkeypatch):
        text = draft(name, monkeypatch)
        assert [part for part in has if part not in text] == []

    @pytest.mark.process
    @pytest.mark.parametrize(
        ("name", "has"),
        [
            ("lightning_fit", ("import Trainer", "import Regression", "return trainer, regression, dataloader")),
            ("hf_trainer", ("from transformers.trainer import Trainer", "return trainer")),
            (
                "accelerate_loop",
                (
                    "batch_size=8, num_workers=0, shuffle=True",
                    "loss = None  # the model computes it",
                    "optimizer=optimizer)",
                ),
            ),
        ],
    )
    def test_of_a_library_has_what_its_trainer_was_given(self, name, has, monkeypatch):
        text = draft(name, monkeypatch)
        assert [part for part in has if part not in text] == []

    def test_of_a_generator_returns_what_that_yields(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["train.py"])
        Path("train.py").write_text(
            f"{HEAD}def training():\n    for x, y in loader:\n        loss = (model(x) - y).square().mean()\n"
            "        loss.backward()\n        optimizer.step()\n        yield loss\nfor loss in training():\n    pass\n"
        )
        text, _ = draft_of("train.py", "build_it.py")
        assert "            pass  # yield loss\n        return loss\n" in text
        assert not any(isinstance(node, ast.Yield) for node in ast.walk(ast.parse(text)))

    def test_defines_the_names_that_the_loop_uses(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["train.py"])
        Path("helpers.py").write_text("def scaled(x):\n    return x / 7\n")
        Path("train.py").write_text(
            "import math as m\nfrom helpers import scaled\n"
            f"{HEAD}opt, net, step, total, config, log = optimizer, model, 0, 0.0, object(), print\n"
            "sizes = {'a': [1, 2]}\n"
            "def loss_fn(a, b):\n    return (a - b).abs().mean()\n"
            "for x, y in loader:\n    opt.zero_grad()\n    with torch.enable_grad():\n"
            "        d_loss = loss_fn(net(scaled(x)), y) * m.pi\n        d_loss.backward()\n"
            "    opt.step()\n    step += 1\n    total = total + max(v for v in [d_loss.item()])\n"
            "    log(config, sizes)\n"
        )
        text, _ = draft_of("train.py", "build_it.py")
        compile(text, "build_it.py", "exec")
        assert text.partition("def build")[0].count("import torch\n") == text.count("import torch\n") == 1
        has = ("\nfrom helpers import scaled\n", "\nimport math as m\n")
        has += ("opt = optimizer", "net = model", "step = 1", "total = ", "config = ...  # TODO: of class object")
        has += ("sizes = {'a': [1, 2]}",)
        has += ("def one_step(batch):\n        nonlocal step, total\n", "return d_loss\n", "step=one_step")
        has += ("loss_fn = ...  # TODO: copy it to here",)
        assert [part for part in has if part not in text] == []
        assert [name for name in ("d_loss", "v", "x", "max") if f"    {name} = ..." in text] == []

    def test_of_a_loop_that_counts_has_a_number(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["train.py"])
        Path("train.py").write_text(f"{HEAD}for i in range(9):\n    x, y = next(iter(loader)); {STEP}\n")
        assert "for i in [1]:\n" in draft_of("train.py", "build_it.py")[0]

    def test_of_a_body_beside_its_loops_head_has_the_body_only(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["train.py"])
        Path("train.py").write_text(f"{HEAD}def one(x, y):\n    {STEP}\nfor x, y in loader: one(x, y); seen = 'ä'\n")
        assert "        for (x, y) in [batch]:\n            one(x, y); seen = 'ä'\n" in draft_of("train.py", "b.py")[0]

    @pytest.mark.parametrize(
        ("loss", "optimizers", "has"),
        [
            ("agent.value(x)", "Adam(agent.parameters())", ("model = Agent(", "models=[model.critic, model.heads[0]]")),
            (
                "agent.value(x)",
                "Adam([*agent.critic.parameters(), *agent.heads.parameters()])",
                ("model = Agent(", "Adam(model.parameters()"),
            ),
            ("agent.value(x)", "Adam(agent.critic.parameters())", ("model = Linear(", "models=[model]")),
        ],
    )
    def test_of_a_model_called_by_its_methods_makes_the_whole(self, loss, optimizers, has, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["train.py"])
        Path("train.py").write_text(
            f"{HEAD}class Agent(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.critic, self.heads = nn.Linear(1, 4), nn.ModuleList([nn.Linear(4, 1)])\n"
            "    def value(self, x):\n        return self.heads[0](self.critic(x)).square()\n"
            f"agent = Agent()\nopt = torch.optim.{optimizers}\n"
            f"for x, y in loader:\n    loss = {loss}.mean() + 1\n"
            "    opt.zero_grad(); loss.backward(); opt.step()\n"
        )
        text, _ = draft_of("train.py", "build_it.py")
        compile(text, "build_it.py", "exec")
        assert [part for part in has if part not in text] == [], text

    def test_gives_each_optimizer_the_model_that_it_trains(self, monkeypatch):
        text = draft("gan", monkeypatch)
        assert text.index("model = Linear(") < text.index("model_2 = Sequential(")
        assert text.index("optim.Adam(model_2.parameters()") < text.index("optim.Adam(model.parameters()")

    def test_has_the_models_of_a_rounds_other_updates(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["train.py"])
        Path("train.py").write_text(
            f"{HEAD}other = nn.Linear(1, 2)\nrarely = torch.optim.Adam(other.parameters())\nbatches = iter(loader)\n"
            f"for count in range(2):\n    for _ in range(2):\n        x, y = next(batches); other(x); {STEP}\n"
            "    rarely.zero_grad(); other(x).mean().backward(); rarely.step()\n"
        )
        text, _ = draft_of("train.py", "build_it.py")
        has = ("model = Linear(", "model_2 = Linear(", "models=[model, model_2], optimizers=[optimizer, optimizer_2]")
        assert [part for part in has if part not in text] == []

    @pytest.mark.parametrize(
        ("loss", "has"),
        [
            (
                "nn.functional.huber_loss(model(x), y, delta=0.5, weight=torch.ones(8, 1))",
                "torch.nn.functional.huber_loss(output, target, delta=0.5, weight=...)  # TODO",
            ),
            ("nn.SmoothL1Loss(beta=0.5)(model(x), y)", "loss = torch.nn.SmoothL1Loss(beta=0.5)\n"),
            (
                "nn.BCEWithLogitsLoss(pos_weight=numbers[:1, 0])(model(x), y)",
                "loss = torch.nn.BCEWithLogitsLoss(pos_weight=...)  # TODO",
            ),
            ("nn.MSELoss()(model(x), y)", "loss = torch.nn.MSELoss()\n"),
        ],
    )
    def test_has_the_options_of_the_loss_and_of_the_optimizer(self, loss, has, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["train.py"])
        Path("train.py").write_text(
            f"{HEAD}groups = [dict(params=[p]) for p in model.parameters()]\n"
            "optimizer = torch.optim.SGD(groups, lr=1e-4, foreach=True)\n"
            f"for x, y in loader:\n    loss = {loss}\n"
            "    optimizer.zero_grad(); loss.backward(); optimizer.step()\n"
        )
        text, _ = draft_of("train.py", "build_it.py")
        ast.parse(text)
        assert has in text
        assert "nesterov=False, foreach=True)  # TODO: 2 groups of parameters" in text

    def test_a_file_that_cannot_be_written_is_told_before_the_script_is_run(self, tmp_path):
        (tmp_path / "train.py").write_text("")
        with pytest.raises(UsageError, match="does not exist") as error:
            init.parse([str(tmp_path / "train.py"), "--output", str(tmp_path / "nowhere" / "build.py")])
        assert error.value.message.startswith("--output: ")

    def test_refuses_to_write_over_a_file(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for file in ("train.py", "build_train.py"):
            Path(file).write_text("")
        with pytest.raises(UsageError, match="already"):
            init.parse(["train.py"])()

    def test_of_a_notebook_says_how_as_measuring_one_does(self, tmp_path):
        (tmp_path / "train.ipynb").write_text("{}")
        with pytest.raises(TargetError, match="is a notebook") as error:
            init.parse([str(tmp_path / "train.ipynb")])
        assert "nbconvert" in error.value.hint

    def test_help_says_where_the_scripts_arguments_go(self, capsys):
        with pytest.raises(SystemExit):
            init.parse(["--help"])
        assert "[-- ARGUMENTS of the script]" in capsys.readouterr().out

    @pytest.mark.process
    def test_the_command_writes_it(self, tmp_path, capsys):
        output = tmp_path / "build_it.py"
        assert init.parse([str(HERE / "trainer_class.py"), "--output", str(output), "--", "--epochs", "2"])() == 0
        assert "RMSprop" in output.read_text()
        said = capsys.readouterr().out
        assert f"type: perf-advisor {output}\n" in said
        assert f"For that type: perf-advisor {HERE / 'trainer_class.py'} -- --epochs 2\n" in said

    @pytest.mark.process
    def test_a_script_that_trains_in_other_processes_says_so(self, tmp_path):
        output = tmp_path / "build.py"
        with pytest.raises(TargetError, match="processes of its own"):
            init.parse([str(HERE / "bad" / "spawns.py"), "--output", str(output)])()
        assert not output.exists()

    def test_a_script_that_lacks_arguments_says_which(self, tmp_path):
        with pytest.raises(TargetError, match="required: --data") as error:
            init.parse([str(HERE / "bad/needs_arguments.py"), "--output", str(tmp_path / "b.py")])()
        assert "usage: needs_arguments.py" in error.value.details

    @pytest.mark.process
    def test_a_script_that_never_gets_there_is_stopped(self, tmp_path):
        (tmp_path / "waits.py").write_text("import time\ntime.sleep(600)\n")
        with pytest.raises(TargetError, match="no update of weights within"):
            init.parse([str(tmp_path / "waits.py"), "--budget", "8s"])()
