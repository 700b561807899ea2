import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from facts import cpu_facts
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import LOOP, SETUP

from advisor.recipe.catalog import load_catalog
from advisor.records import Finding, Mode
from advisor.source.habits import RULES
from advisor.source.reading import (
    IN_TRAINING_ONLY,
    ON_GPU_ONLY,
    read_file,
    read_sources,
    read_text,
    relevant,
    target_file,
)


def habits_in(text, file="<text>"):
    """The habits in a text of Python, or in a file."""
    return (read_file(text) if isinstance(text, Path) else read_text(text, file)).findings


def indented(text, by=4):
    return textwrap.indent(textwrap.dedent(text).strip(), " " * by)


def found(text):
    return [(finding.recipe, finding.text) for finding in habits_in(textwrap.dedent(text))]


def in_the_loop(text):
    """The habits found in lines after the optimizer's step in the training loop."""
    return found(f"import copy\n{SETUP}{LOOP}{indented(text)}\n")


# Lines behind the optimizer's step, by the habit that each is; empty for none.
IN_THE_LOOP = {
    "loss_sync": [
        "total += loss.item()",
        "total += float(loss)",
        "history.append(loss.detach().cpu())",
        "print(loss)",
        'print(f"loss {loss:.3f}")',
        'progress.set_description(f"{loss}")',
        "if step > 100:\n    break\nprint(loss.item())",
    ],
    "empty_cache": ["torch.cuda.empty_cache()"],
    "zero_grad": ["optimizer.zero_grad(set_to_none=False)"],
    "kept_graphs": [
        "total += loss",
        "self.history.append(loss)",
        "losses.append(loss)",
        "if step % 10 == 0: pass\nlosses.append(loss / 4)",
    ],
    "copied_state": [
        "best = copy.deepcopy(model.state_dict())",
        "best = {k: v.clone() for k, v in model.state_dict().items()}",
    ],
    "": [
        "if step % 100 == 0: print(loss.item())",
        "print(loss.item()) if step % 10 == 0 else None",
        "if step % 100:\n    continue\nprint(loss.item())",
        "if loss is not None: count += 1",
        "count += len(x) + x.size(0) + out.numel()",
        "optimizer.zero_grad(set_to_none=True)",
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "total += loss.detach()",
        "loss = loss.detach()\ntotal += loss",
        "with torch.no_grad():\n    total += loss",
        "losses = []\nlosses.append(loss)",
        "losses.append(loss)\nlosses.clear()",
        "losses.append(loss)\nloss = sum(losses)",
        "total += loss\ntotal.backward()",
        "total += penalty",
        "if step % 100 == 0: losses.append(loss)",
        "if loss_value < least: best = copy.deepcopy(model.state_dict())",
        "before = copy.deepcopy(model.state_dict())\nmodel.load_state_dict(before)",
    ],
}


@pytest.mark.parametrize(("recipe", "line"), [(one, line) for one, lines in IN_THE_LOOP.items() for line in lines])
def test_a_habit_is_what_runs_at_every_step(recipe, line):
    assert in_the_loop(line) == ([(recipe, line.splitlines()[-1])] if recipe else [])


def test_a_habit_is_told_with_its_place_and_what_to_do():
    (finding,) = habits_in(f"{SETUP}{LOOP}    total += loss.item()\n", "train.py")
    assert finding.place == "train.py:15"
    assert finding.text == "total += loss.item()"
    assert "wait" in finding.what
    assert "hundredth" in finding.advice


def test_a_handler_of_memory_that_ran_out_may_empty_the_cache():
    text = """
    for x, y in loader:
        try:
            loss = criterion(model(x), y)
            loss.backward()
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
    """
    assert found(SETUP + textwrap.dedent(text)) == []


def test_only_the_innermost_loop_is_the_step():
    text = f"{SETUP}for epoch in range(3):\n{indented(LOOP)}\n    print(loss.item())\n    torch.cuda.empty_cache()\n"
    assert found(text) == []


def test_a_step_in_a_function_is_one_when_a_loop_calls_it():
    function = "def train_step(x, y):\n    loss = criterion(model(x), y)\n    loss.backward()\n    return loss.item()\n"
    loop = "for x, y in loader:\n    total += train_step(x, y)\n"
    assert found(SETUP + function + loop) == [("loss_sync", "return loss.item()")]
    assert found(SETUP + function + "train_step(x, y)\n") == []
    through = f"def epoch():\n{indented(loop)}\n        torch.cuda.empty_cache()\n"
    assert [recipe for recipe, _ in found(SETUP + function + through)] == ["loss_sync", "empty_cache"]


def test_methods_are_followed_but_not_an_optimizers_step():
    text = """
    class Trainer:
        def step(self, batch):
            loss = self.criterion(self.model(batch))
            loss.backward()
            print(loss.item())

        def unrelated(self):
            for _ in range(3):
                self.optimizer.step()
    """
    assert found(SETUP + textwrap.dedent(text)) == []
    assert found(SETUP + textwrap.dedent(text).replace("self.optimizer.step()", "self.step(3)")) == [
        ("loss_sync", "print(loss.item())")
    ]


@pytest.mark.parametrize(
    "backward", ["scaler.scale(loss).backward()", "accelerator.backward(loss)", "(loss + 0.1 * extra).backward()"]
)
def test_the_loss_is_known_by_what_is_run_backward(backward):
    text = f"{SETUP}for x, y in loader:\n    loss = compute(x, y)\n    {backward}\n    total += loss.item()\n"
    assert found(text) == [("loss_sync", "total += loss.item()")]


def test_a_loss_that_was_read_already_is_a_number():
    assert [text for _, text in in_the_loop("value = loss.item()\nprint(value)\nloss = loss.item()\nprint(loss)")] == [
        "value = loss.item()",
        "loss = loss.item()",
    ]


def test_lightnings_training_step_is_a_step():
    text = """
    import lightning as L

    class Module(L.LightningModule):
        def training_step(self, batch, index):
            loss = self.net(batch)
            self.log("loss", loss)
            torch.cuda.empty_cache()
            return loss
    """
    assert found(SETUP + textwrap.dedent(text)) == [("empty_cache", "torch.cuda.empty_cache()")]


EVALUATE = """
def evaluate(model, loader):
    model.eval()
    for x, y in loader:
        out = model(x)
    return out
"""


def test_validation_that_records_is_found():
    assert found(SETUP + EVALUATE) == [("eval_no_grad", "out = model(x)")]
    assert found("net = build().eval()\nout = net(x)\n") == [("eval_no_grad", "out = net(x)")]
    assert found("self.m.eval()\nwith torch.autocast('cuda'):\n    self.m(x)\n") == [("eval_no_grad", "self.m(x)")]


@pytest.mark.parametrize(
    "text",
    [
        "import torch\n@torch.no_grad()" + EVALUATE,
        "@evaluation" + EVALUATE,
        EVALUATE.replace("    for x", "    with torch.no_grad():\n     for x").replace("        out", "         out"),
        EVALUATE + "with torch.no_grad():\n    evaluate(model, loader)\n",
        EVALUATE.replace("    for x", "    model.train()\n    for x"),
        EVALUATE.replace("    return out", "    out.sum().backward()"),
        EVALUATE.replace("model.eval()", "model.eval()\n    model.requires_grad_(False)"),
    ],
)
def test_validation_that_does_not_record_or_may_not_is_left_alone(text):
    assert found(text) == []


def test_training_and_validation_in_one_function():
    validation = indented("model.eval()\nfor x, y in val_loader:\n    out = model(x)\n")
    text = f"{SETUP}for epoch in range(3):\n    model.train()\n{indented(LOOP)}\n{validation}\n"
    assert found(text) == [("eval_no_grad", "out = model(x)")]


def test_every_rule_has_a_recipe_or_a_name_of_its_own_and_two_sentences():
    catalog = set(load_catalog().recipes)
    unpriced = {"cell_loop", "copied_state", "kept_graphs", "list_of_arrays", "written_attention"}
    assert {rule.recipe for rule in RULES} - catalog == unpriced
    for rule in RULES:
        what, _, advice = rule.pattern.__doc__.partition(": ")
        assert what
        assert advice.endswith(".")
        if rule.value and "{}" not in rule.value:
            assert load_catalog()[rule.recipe].accepts(rule.value)


def test_a_loss_that_is_summed_for_one_backward_pass_is_needed():
    text = """
    for batch in loader:
        total = 0
        for part in batch:
            loss = criterion(model(part), part)
            total += loss
        total.backward()
        optimizer.step()
    """
    assert found(SETUP + textwrap.dedent(text)) == []
    assert found("recent = collections.deque(maxlen=9)\n" + SETUP + LOOP + "    recent.append(loss)\n") == []


CELL = """
import torch
from torch import nn

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.{0}Cell(8, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x, state):
        outputs = []
        for t in range(x.size(1)):
{1}
        return outputs
"""


@pytest.mark.parametrize(
    ("cell", "body", "instead"),
    [
        ("GRU", "state = self.cell(x[:, t], state)\noutputs.append(self.head(state))", "nn.GRU"),
        ("LSTM", "h, c = self.cell(self.embed(x[:, t]), (h, c))\noutputs.append(h)", "nn.LSTM"),
        ("GRU", "state = self.cell(word, state)\nword = self.head(state).argmax(-1)", ""),
        ("GRU", "state = self.cell(x[:, t], state)\nstate = state * mask[t]", ""),
        ("GRU", "if mask[t]:\n    state = self.cell(x[:, t], state)", ""),
        ("GRU", "state = self.cell(env.look(), state)\nenv.step(self.head(state))", ""),
    ],
)
def test_a_loop_over_a_cell_where_a_layer_does_the_same(cell, body, instead):
    findings = [each for each in habits_in(CELL.format(cell, indented(body, 12))) if each.recipe == "cell_loop"]
    assert [each.advice.partition(" ")[0] for each in findings] == ([instead] if instead else [])


@pytest.mark.parametrize(
    ("lines", "is_found"),
    [
        ("return torch.tensor([np.load(file) for file in files])", True),
        ("images = [frame.cpu().numpy() for frame in files]\nreturn torch.FloatTensor(images)", True),
        ("rows = []\nfor file in files:\n    rows.append(np.array(file))\nreturn torch.as_tensor(rows)", True),
        ("return torch.tensor(np.stack([np.load(file) for file in files]))", False),
        ("return torch.tensor([np.load(file).mean() for file in files])", False),
        ("return torch.tensor([np.random.rand() for file in files])", False),
        ("return torch.tensor((np.zeros(3), files[0]))", True),
        ("rows = [1.0]\nreturn torch.tensor(rows)\n\ndef other(rows):\n    rows.append(np.zeros(3))", False),
        ("return torch.tensor(files.numpy())", False),
        ("return torch.stack([torch.zeros(3) for file in files])", False),
    ],
)
def test_a_tensor_of_a_list_of_arrays(lines, is_found):
    text = f"import numpy as np\nimport torch\n\ndef collate(files):\n{indented(lines)}\n"
    assert [each.recipe for each in habits_in(text)] == ["list_of_arrays"] * is_found


@pytest.mark.parametrize(
    ("lines", "is_found"),
    [
        ("att = (q @ k.transpose(-2, -1)) * scale\natt = F.softmax(att + mask, dim=-1)\ny = att @ v", True),
        ("s = torch.matmul(q, k.transpose(-1, -2))\ny = torch.matmul(drop(s.softmax(-1)), v)", True),
        ("s = einsum('bhid,bhjd->bhij', q, k)\ny = einsum('bhij,bhjd->bhid', self.softmax(s), v)", True),
        ("if fast:\n    return F.scaled_dot_product_attention(q, k, v)\ny = torch.softmax(q @ k.mT, -1) @ v", False),
        ("logits = images @ texts.t()\ny = torch.softmax(logits, -1)", False),
    ],
)
def test_attention_that_one_function_computes(lines, is_found):
    text = f"import torch\nfrom torch.nn import functional as F\n\ndef forward(self, q, k, v):\n{indented(lines)}\n"
    assert [each.recipe for each in habits_in(text)] == ["written_attention"] * is_found


WHOLE = f"{SETUP}{LOOP}    print(loss.item())\n{EVALUATE}x = DataLoader(d)\n"


@given(st.text())
def test_any_text_is_read(text):
    assert isinstance(habits_in(text), tuple)


@given(st.binary(max_size=300))
@settings(max_examples=50, deadline=None)  # a busy disk takes longer than any deadline
def test_any_bytes_are_read(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "a.py"
    path.write_bytes(content)
    assert isinstance(read_file(path).problem, str)


@given(st.data())
def test_any_cut_of_a_program_is_read(data):
    start = data.draw(st.integers(0, len(WHOLE)))
    end = data.draw(st.integers(start, len(WHOLE)))
    for finding in habits_in(WHOLE[:start] + WHOLE[end:]):
        assert finding.line >= 1
        assert finding.what
        assert finding.advice


LONG_STEP = "    loss = model(x)\n    loss.backward()\n    optimizer.step()\n    total += loss.item()\n"
LONG_FUNCTION = "def f(x):\n    loss = model(x)\n    loss.backward()\n    print(loss.item())\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [("for x in loader:\n" + LONG_STEP * 800, 800), (LONG_FUNCTION * 150 + "for x in loader:\n    f(x)\n", 150)],
    ids=["steps in a loop", "functions of one name"],
)
def test_long_programs_are_read(text, found):
    assert len(habits_in(text)) == found


def test_nothing_of_a_file_runs(tmp_path):
    victim, script = tmp_path / "victim", tmp_path / "train.py"
    script.write_text(
        f"import pathlib, sys\npathlib.Path({str(victim)!r}).touch()\nsys.exit(3)\n{SETUP}{LOOP}    loss.item()\n"
    )
    modules = set(sys.modules)
    assert [finding.recipe for finding in read_file(script).findings] == ["loss_sync"]
    assert [reading.file for reading in read_sources("train:build", str(tmp_path))] == ["train.py"]
    assert not victim.exists()
    assert set(sys.modules) == modules


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"def broken(:\n", "cannot be parsed: line 1"),
        (b"x = '\x00'\n", "cannot be parsed"),
        (b"\xff\xfe\x00binary", "is not text"),
        (b"# coding: no-such-coding\n", "is not text"),
        (b"x = " + b"(" * 5000 + b")" * 5000, "cannot be parsed"),
        (b"x = a" + b".b" * 20000, "cannot be parsed|nested too deeply"),
        (b"#" * 1_000_001, "larger than 1 MB"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(tmp_path, content, problem):
    path = tmp_path / "train.py"
    path.write_bytes(content)
    reading = read_file(path, "train.py")
    assert reading.findings == ()
    assert any(part in reading.problem for part in problem.split("|"))
    assert "\n" not in reading.problem


def test_what_is_not_there_is_a_sentence(tmp_path):
    assert read_file(tmp_path / "gone.py", "gone.py").problem == "gone.py could not be read: No such file or directory"
    assert "could not be read" in read_file(tmp_path).problem
    assert "could not be read" in read_file(Path("with\0zero.py")).problem


def test_the_targets_file_is_found_without_importing(tmp_path, monkeypatch):
    package = tmp_path / "mine" / "models"
    package.mkdir(parents=True)
    for path in (tmp_path / "mine" / "__init__.py", package / "__init__.py", package / "net.py", tmp_path / "flat.py"):
        path.write_text("raise SystemExit\n")
    directory = str(tmp_path)
    assert target_file("flat:build", directory) == tmp_path / "flat.py"
    assert target_file("flat", directory) == tmp_path / "flat.py"
    assert target_file("flat.py:build", directory) == tmp_path / "flat.py"
    assert target_file("mine.models.net:build", directory) == package / "net.py"
    assert target_file("mine.models:build", directory) == package / "__init__.py"
    assert target_file("mine/models/net.py:build", directory) == package / "net.py"
    monkeypatch.syspath_prepend(str(package))
    assert target_file("net:build", directory) == package / "net.py"


@pytest.mark.parametrize(
    "target", ["demo", "torchvision.models:resnet50", "nowhere:build", "gone.py:build", "..:x", ":x", "json:load"]
)
def test_what_is_not_the_users_is_not_read(tmp_path, target):
    assert target_file(target, str(tmp_path)) is None
    assert read_sources(target, str(tmp_path)) == ()


def test_each_file_is_read_once(tmp_path):
    (tmp_path / "train.py").write_text(SETUP + LOOP + "    loss.item()\n")
    (tmp_path / "other.py").write_text("x = 1\n")
    scripts = [str(tmp_path / "train.py"), "other.py", "gone.py"]
    readings = read_sources("train.py:build", str(tmp_path), scripts)
    assert [reading.file for reading in readings] == ["train.py", "other.py", "gone.py"]
    assert [bool(reading.problem) for reading in readings] == [False, False, True]


def test_what_costs_time_on_a_gpu_only_is_what_its_recipe_says():
    recipes = load_catalog().recipes
    assert {name for name in ON_GPU_ONLY if "cpu" in recipes[name].devices} == set()
    assert {name for name in IN_TRAINING_ONLY & set(recipes) if Mode.INFER in recipes[name].modes} == set()


@pytest.mark.parametrize(
    ("workload", "recipe", "kept"),
    [
        ({"device": "cuda:0"}, "loss_sync", True),
        ({"device": "cpu"}, "loss_sync", False),
        ({"device": "cpu"}, "zero_grad", True),
        ({"device": "cpu", "mode": Mode.INFER}, "zero_grad", False),
    ],
)
def test_only_findings_about_the_measured_loop_on_its_device_are_told(workload, recipe, kept):
    facts = cpu_facts()
    facts = replace(facts, workload=replace(facts.workload, **workload), profile=None)
    finding = Finding(recipe, "train.py", 3, "a line", "does something", "do another thing")
    assert bool(relevant([finding], facts)) is kept
