import re
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import LOOP, SETUP

from advisor.recipe.catalog import load_catalog
from advisor.source import program
from advisor.source.reading import _read_text, read_file


def habits_in(text, file="<text>"):
    """The habits in a text of Python, or in a file."""
    return (read_file(text) if isinstance(text, Path) else _read_text(text, file)).findings


def indented(text, by=4):
    return textwrap.indent(textwrap.dedent(text).strip(), " " * by)


def found(text):
    return [(finding.recipe, finding.text) for finding in habits_in(textwrap.dedent(text))]


def in_the_loop(text):
    """What is found of lines behind the optimizer's step, in the loop that trains."""
    return found(f"{SETUP}{LOOP}{indented(text)}\n")


# --- reading values at every step -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "recipe"),
    [
        ("total += loss.item()", "loss_sync"),
        ("total += loss.item() * x.size(0)", "loss_sync"),
        ("total += float(loss)", "loss_sync"),
        ("history.append(loss.detach().cpu())", "loss_sync"),
        ("history.append(loss.detach().cpu().numpy())", "loss_sync"),
        ("print(loss)", "loss_sync"),
        ('print(f"loss {loss:.3f}")', "loss_sync"),
        ('progress.set_description(f"{loss}")', "loss_sync"),
        ('logger.info("loss %s", loss)', "loss_sync"),
        ("if loss > 10: break", "loss_sync"),
        ("assert not torch.isnan(loss)", "loss_sync"),
        ("correct = (out.argmax(1) == y).sum().item()", "host_sync"),
        ("accuracy = score(out, y).item()", "host_sync"),
        ("picked = out[out > 0]", "host_sync"),
        ("places = out.nonzero()", "host_sync"),
        ("places = torch.nonzero(out)", "host_sync"),
        ("values = out.tolist()", "host_sync"),
        ('copy = out.to("cpu")', "host_sync"),
        ("torch.cuda.synchronize()", "host_sync"),
        ("for name, value in model(x).items(): meters[name] += value.item()", "host_sync"),
        ("torch.cuda.empty_cache()", "empty_cache"),
        ("mask = torch.zeros(8).to(device)", "create_on_device"),
        ("mask = torch.ones(8, 8).triu().cuda()", "create_on_device"),
        ("optimizer.zero_grad(set_to_none=False)", "zero_grad"),
    ],
)
def test_a_habit_at_every_step_is_found(line, recipe):
    assert [name for name, _ in in_the_loop(line)] == [recipe]


def test_a_habit_is_told_with_its_place_and_what_to_do():
    (finding,) = habits_in(f"{SETUP}{LOOP}    total += loss.item()\n", "train.py")
    assert finding.place == "train.py:15"
    assert finding.text == "total += loss.item()"
    assert "wait" in finding.what
    assert "hundredth" in finding.advice


@pytest.mark.parametrize(
    "line",
    [
        "if step % 100 == 0: print(loss.item())",
        "if should_log: print(loss.item())",
        "print(loss.item()) if step % 10 == 0 else None",
        "step % 10 == 0 and print(loss.item())",
        "total += loss.detach()",
        "print(step, loss.shape, x.device)",
        "if loss is not None: count += 1",
        "if step > 10: break",
        "if isinstance(out, tuple): pass",
        "count += len(x) + x.size(0) + out.numel()",
        "hook = lambda: loss.item()",
        "x = x.to(torch.float32)",
        "mask = torch.zeros(8, device=device)",
        "lr = np.mean(rates).item()",
        "index = y_host.max().item()",
        "logger.debug('%s', loss)",
        "optimizer.zero_grad(set_to_none=True)",
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "print(loss_history[-1])",
    ],
)
def test_what_is_no_habit_is_left_alone(line):
    assert in_the_loop(line) == []


def test_a_line_behind_a_skip_does_not_run_at_every_step():
    assert in_the_loop("if step % 100:\n    continue\nprint(loss.item())") == []
    assert in_the_loop("if step > 100:\n    break\nprint(loss.item())") == [("loss_sync", "print(loss.item())")]


def test_a_condition_that_the_training_shares_is_none_of_its_own():
    text = """
    for phase in phases:
        for x, y in loader:
            out = model(x.cuda())
            loss = criterion(out, y.cuda())
            if phase == "train":
                loss.backward()
                optimizer.step()
                total += loss.item()
    """
    assert found(SETUP + textwrap.dedent(text)) == [("loss_sync", "total += loss.item()")]


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
    through = (
        "def epoch():\n    for x, y in loader:\n        total += train_step(x, y)\n        torch.cuda.synchronize()\n"
    )
    assert [recipe for recipe, _ in found(SETUP + function + through)] == ["loss_sync", "host_sync"]


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
    "backward",
    [
        "scaler.scale(loss).backward()",
        "accelerator.backward(loss)",
        "(loss / steps).backward()",
        "(loss + 0.1 * extra).backward()",
        "self.manual_backward(loss)",
    ],
)
def test_the_loss_is_known_by_what_is_run_backward(backward):
    text = f"{SETUP}for x, y in loader:\n    loss = compute(x, y)\n    {backward}\n    total += loss.item()\n"
    assert found(text) == [("loss_sync", "total += loss.item()")]


def test_a_loss_that_was_read_already_is_a_number():
    assert [text for _, text in in_the_loop("value = loss.item()\nprint(value)\nloss = loss.item()\nprint(loss)")] == [
        "value = loss.item()",
        "loss = loss.item()",
    ]


def test_what_a_models_forward_does_is_done_at_every_step():
    text = """
    class Net(nn.Module):
        def forward(self, x, lengths):
            longest = lengths.max().item()
            if self.debug:
                print(x.mean().item())
            return self.head(x[:, :longest]) + torch.arange(3).to(x.device)

        def describe(self, x):
            return x.item()

    class Base:
        def forward(self, x):
            return x.item()
    """
    assert [recipe for recipe, _ in found(SETUP + textwrap.dedent(text))] == ["host_sync", "create_on_device"]


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


# --- gradients, validation, debugging, data -------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "p.grad = None",
        "p.grad.zero_()",
        "p.grad.data.zero_()",
        "p.grad.detach().zero_()",
        "p.grad = torch.zeros_like(p)",
    ],
)
@pytest.mark.parametrize(
    "loop", ["for p in model.parameters():", "for p in group['params']:", "for _, p in m.named_parameters():"]
)
def test_gradients_cleared_by_hand(loop, body):
    assert found(f"import torch\n{loop}\n    {body}\n") == [("zero_grad", body)]


def test_other_attributes_are_not_gradients():
    assert (
        found("for p in model.parameters():\n    p.requires_grad = None\n    q.grad = None\n    p.data.zero_()\n") == []
    )


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
    assert found("self.net.eval()\nwith torch.autocast('cuda'):\n    self.net(x)\n") == [
        ("eval_no_grad", "self.net(x)")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "import torch\n@torch.no_grad()" + EVALUATE,
        "import torch\n@torch.inference_mode()" + EVALUATE,
        "@evaluation" + EVALUATE,
        EVALUATE.replace("    for x", "    with torch.no_grad():\n     for x").replace("        out", "         out"),
        EVALUATE.replace("    for x", "    with context:\n     for x").replace("        out", "         out"),
        EVALUATE + "with torch.no_grad():\n    evaluate(model, loader)\n",
        "import torch\ntorch.set_grad_enabled(False)\n" + EVALUATE,
        EVALUATE.replace("    for x", "    model.train()\n    for x"),
        EVALUATE.replace("    return out", "    out.sum().backward()"),
        EVALUATE.replace("model.eval()", "model.eval()\n    model.requires_grad_(False)"),
        EVALUATE.replace("        out = model(x)", "        out = other(x)"),
        "model.eval()\ntraced = export(model, x)\n",
    ],
)
def test_validation_that_does_not_record_or_may_not_is_left_alone(text):
    assert found(text) == []


def test_training_and_validation_in_one_function():
    validation = indented("model.eval()\nfor x, y in val_loader:\n    out = model(x)\n")
    text = f"{SETUP}for epoch in range(3):\n    model.train()\n{indented(LOOP)}\n{validation}\n"
    assert found(text) == [("eval_no_grad", "out = model(x)")]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("torch.autograd.set_detect_anomaly(True)", "anomaly"),
        ("torch.autograd.set_detect_anomaly(mode=True)", "anomaly"),
        ("with torch.autograd.detect_anomaly(): run()", "anomaly"),
        ("trainer = Trainer(detect_anomaly=True)", "anomaly"),
        ("torch.autograd.gradcheck(function, inputs)", "gradcheck"),
        ("if __name__ == '__main__': torch.autograd.set_detect_anomaly(True)", "anomaly"),
    ],
)
def test_debugging_aids_that_are_on(line, value):
    [finding] = habits_in(f"import torch\n{line}\n")
    assert (finding.recipe, finding.value) == ("debug_off", value)


@pytest.mark.parametrize(
    ("text", "recipe", "value"),
    [
        (f"{SETUP}{LOOP}    print(loss.item())\n", "loss_sync", "every_step"),
        (f"{SETUP}{LOOP}    torch.cuda.empty_cache()\n", "empty_cache", "every_step"),
        ("optimizer.zero_grad(set_to_none=False)\n", "zero_grad", "zeros"),
        ("for p in model.parameters():\n    p.grad = None\n", "zero_grad", "manual"),
        ("for p in model.parameters():\n    p.grad.zero_()\n", "zero_grad", "zeros"),
    ],
)
def test_a_habit_names_the_value_that_does_the_same(text, recipe, value):
    [finding] = habits_in(text)
    assert (finding.recipe, finding.value) == (recipe, value)
    assert load_catalog()[recipe].accepts(value)


@pytest.mark.parametrize(
    "text",
    [
        "torch.autograd.set_detect_anomaly(False)",
        "torch.autograd.set_detect_anomaly(args.debug)",
        "if args.debug:\n    torch.autograd.set_detect_anomaly(True)",
        "def test_gradients():\n    torch.autograd.gradcheck(function, inputs)",
        "with torch.profiler.profile() as profiler:\n    model(x)",
    ],
)
def test_debugging_aids_that_are_off_or_meant(text):
    assert found(f"import torch\n{text}\n") == []


def test_a_profiler_around_the_whole_training():
    loop = indented(LOOP)
    for context in ("torch.profiler.profile()", "torch.autograd.profiler.emit_nvtx()"):
        assert found(f"{SETUP}with {context}:\n{loop}\n") == [("debug_off", f"with {context}:")]
    assert found(f"{SETUP}with torch.profiler.profile(schedule=plan) as p:\n{loop}\n") == []
    assert found(f"{SETUP}with torch.autograd.profiler.profile(enabled=args.profile):\n{loop}\n") == []


def test_determinism():
    assert found("import torch\ntorch.backends.cudnn.deterministic = True\n")[0][0] == "deterministic_off"
    assert found("from torch.backends import cudnn\ncudnn.deterministic = True\n")[0][0] == "deterministic_off"
    assert found("import torch\ntorch.use_deterministic_algorithms(True)\n")[0][0] == "deterministic_off"
    assert found("import torch\ntorch.backends.cudnn.deterministic = False\n") == []


@pytest.mark.parametrize(
    ("arguments", "recipes"),
    [
        ("data", ["num_workers", "pin_memory"]),
        ("data, num_workers=0, pin_memory=False", ["num_workers", "pin_memory"]),
        ("data, num_workers=4", ["pin_memory"]),
        ("data, num_workers=workers, pin_memory=True", []),
        ("data, 8, True, None, None, 4, None, True", []),
        ("data, **options", []),
        ("*arguments", []),
    ],
)
def test_loaders(arguments, recipes):
    text = f"from torch.utils.data import DataLoader as Loader\ndevice = 'cuda'\nx = Loader({arguments})\n"
    assert [recipe for recipe, _ in found(text)] == recipes


def test_pinned_memory_is_no_matter_without_a_gpu():
    assert [recipe for recipe, _ in found("from torch.utils.data import DataLoader\nx = DataLoader(data)\n")] == [
        "num_workers"
    ]


def test_a_class_of_the_same_name_is_not_pytorchs():
    assert found("from mine import DataLoader\ndevice = 'cuda'\nDataLoader(data)\n") == []


def test_what_empties_the_cache_in_validation():
    text = "import torch\nfor x in val_loader:\n    run(x)\n    torch.cuda.empty_cache()\n"
    assert [recipe for recipe, _ in found(text)] == ["empty_cache"]
    assert found("import torch\nfor x in names:\n    torch.cuda.empty_cache()\n") == []


def test_every_recipe_of_a_finding_is_in_the_catalogue():
    rules = Path(read_file.__code__.co_filename).with_name("habits.py").read_text()
    habits = {
        "create_on_device",
        "debug_off",
        "deterministic_off",
        "empty_cache",
        "eval_no_grad",
        "host_sync",
        "loss_sync",
        "num_workers",
        "pin_memory",
        "zero_grad",
    }
    assert habits <= set(load_catalog().recipes)
    assert all(f'"{recipe}"' in rules for recipe in habits)
    assert set(re.findall(r'Habit\(\s*\w+,\s*"(\w+)"', rules)) <= habits


# --- whatever the text ----------------------------------------------------------------------------------------

WHOLE = f"{SETUP}{LOOP}    print(loss.item())\n{EVALUATE}x = DataLoader(d)\n"


@given(st.text())
def test_any_text_is_read(text):
    assert isinstance(habits_in(text), tuple)


@given(st.binary(max_size=300))
@settings(max_examples=50, deadline=None)  # a busy disk takes longer than any deadline
def test_any_bytes_are_read(tmp_path_factory, content):
    for name in ("a.py", "a.ipynb"):
        path = tmp_path_factory.getbasetemp() / name
        path.write_bytes(content)
        assert isinstance(read_file(path).problem, str)


@given(st.lists(st.sampled_from(WHOLE.splitlines()), max_size=25), st.integers(0, 3))
def test_any_order_of_lines_is_read(lines, deeper):
    text = "\n".join("    " * (index % (deeper + 1)) + line for index, line in enumerate(lines))
    for finding in habits_in(text):
        assert text.splitlines()[finding.line - 1].strip() == finding.text


@given(st.data())
def test_any_cut_of_a_program_is_read(data):
    start = data.draw(st.integers(0, len(WHOLE)))
    end = data.draw(st.integers(start, len(WHOLE)))
    for finding in habits_in(WHOLE[:start] + WHOLE[end:]):
        assert finding.line >= 1
        assert finding.what
        assert finding.advice


def test_our_own_source_is_read():
    root = Path(__file__).parents[2]
    files = sorted(path for folder in ("advisor", "recipes") for path in (root / folder).rglob("*.py"))
    readings = [read_file(path) for path in files[::4]]  # all of them take four seconds
    assert len(readings) > 50
    assert not [reading.problem for reading in readings if reading.problem]


LONG_STEP = "    loss = model(x)\n    loss.backward()\n    optimizer.step()\n    total += loss.item()\n"
LONG_FUNCTION = "def f{0}(x):\n    f{1}(x)\n    loss = model(x)\n    loss.backward()\n    print(loss.item())\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("for x in loader:\n" + LONG_STEP * 800, 800),
        ("".join(LONG_FUNCTION.format(i, i + 1) for i in range(400)) + "for x in loader:\n    f0(x)\n", 400),
        (LONG_FUNCTION.format("", "") * 150 + "for x in loader:\n    f(x)\n", 150),
    ],
    ids=["steps in a loop", "functions that call one another", "functions of one name"],
)
def test_long_programs_are_read(text, found):
    assert len(habits_in(text)) == found


def test_a_program_that_would_take_minutes_is_left_unread(tmp_path, monkeypatch):
    """A program of a tenth of the length, of which a hundredth may be read: it grows with the square."""
    monkeypatch.setattr(program, "_MOST", program._MOST // 100)
    (tmp_path / "train.py").write_text("for x in loader:\n" + ("    if bad(x):\n        continue\n" + LONG_STEP) * 400)
    reading = read_file(tmp_path / "train.py", "train.py")
    assert reading.problem == "train.py has too many conditions and calls to be read for habits"
