"""Settings written into scripts as people write them: the changed file runs, and computes the same losses."""

import contextlib
import dataclasses
import io
import json
import linecache
import math
import os
import re
import runpy
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
import torch
from graph_stand_in import record_on_cpu
from PIL import Image
from real_session import short_trials
from tiny_mnist import write_mnist

from advisor.cli.main import main
from advisor.errors import UsageError
from advisor.export.config_patch import diff
from advisor.export.formats.script import arguments_of_trainer
from advisor.python.changes import patched_files
from advisor.recipe.catalog import load_catalog
from advisor.records import Finding, Mode, TargetSpec, WorkloadFacts
from advisor.workloads.entrypoint import load_target
from scripts.steps import HEAD, STEP

PUBLIC = Path(__file__).parent / "public"
DIFFS = Path(__file__).parents[1] / "data" / "script_diffs.txt"
SCRIPTS = [path.stem for path in PUBLIC.glob("*.py") if path.stem != "reference_engine"]
# Workers that live on draw one random number less in each epoch, so the order of the later ones is another.
EXACT = {
    "optimizer.implementation": "fused",
    "data.num_workers": 1,
    "cpu.threads": 2,
    "model.memory_format": "channels_last",
}


def facts_of(loop, device="cpu"):
    """The facts that a change needs, of a loop as it is loaded."""
    needed = {
        one.name: None
        for one in dataclasses.fields(WorkloadFacts)
        if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
    }
    given = {"mode": loop.mode, "device": device, "places": loop.places, "batch_text": "float32[8, 1], float32[8, 1]"}
    return WorkloadFacts(**{**needed, **given})


def changed(path, settings, *, device="cpu", evaluations=()):
    """The files of a script with settings in them."""
    linecache.clearcache()
    facts = facts_of(load_target(TargetSpec(path.name, str(path.parent), device="cpu")), device)
    return patched_files(load_catalog(()), settings, facts, str(path.resolve()), evaluations=evaluations)


def losses_of(path):
    """All numbers that a script prints."""
    said = io.StringIO()
    sys.path.insert(0, str(path.parent))
    for name in ("reference_engine", "model_file"):
        sys.modules.pop(name, None)
    sys.argv = [str(path)]
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.path.remove(str(path.parent))
    return [float(number) for number in re.findall(r"-?\d+\.\d+(?:e-\d+)?", said.getvalue())]


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def written(tmp_path):
    """Write files, change them, and return the text of the first one."""

    def write(text, settings, *, name="train.py", **options):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        patched = changed(path, settings, **options)
        return patched.files[str(path)].decode(), patched

    return write


def copies(name, folder):
    for file in PUBLIC.glob(f"{name}*.py"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder / f"{name}.py"


def write_files(patched):
    for file, text in patched.files.items():
        Path(file).write_bytes(text)


@pytest.mark.process
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_changed_script_computes_the_same_losses_and_in_bfloat16_nearly_the_same(name, tmp_path):
    path = copies(name, tmp_path)
    settings = {**EXACT, "optimizer.implementation": "for-loop"} if name == "segment" else EXACT  # no RMSprop is fused
    exact, cast = (changed(path, one) for one in (settings, {"precision.autocast": "bfloat16"}))
    assert not cast.left_out
    assert any('torch.autocast("cpu", dtype=torch.bfloat16):' in text.decode() for text in cast.files.values())
    before = losses_of(path)
    assert len(before) > 4
    write_files(exact)
    assert losses_of(path) == pytest.approx(before, rel=1e-3, abs=2e-4)
    if name == "language_model" and torch.backends.cpu.get_cpu_capability() == "AVX2":
        pytest.skip("this processor has no LSTM in bfloat16")
    write_files(cast)
    assert losses_of(path) == pytest.approx(before, rel=0.2, abs=0.05)


AUTOCAST, HALF = {"precision.autocast": "bfloat16"}, {"precision.autocast": "float16"}
WITH_LOSS = {"compile.mode": "default", "compile.scope": "with_loss"}
GRAPH = {"step.cuda_graph": True}
LOOP = f"for x, y in loader:\n    {STEP}\n"
UPDATE = "    loss.backward()\n    optimizer.step()\n"
BRANCHES = (
    "for x, y in loader:\n    optimizer.zero_grad()\n    output = model(x)\n    if x.ndim > 1:\n"
    f"        loss = output.mean()\n        loss += 1\n    OTHERWISE:\n        loss = output.sum()\n{UPDATE}"
)
PLAIN = f"for x, y in loader:\n    loss = (model(x) - y).square().mean()\n    optimizer.zero_grad()\n{UPDATE}"
COPIED = "device = 'cpu'\n" + PLAIN.replace(":\n", ":\n    x, y = x.to(device), y.to(device)\n", 1)
# What is written where, by script (a text, or the name of a public one), settings and device: the changes are in DIFFS.
CASES = {
    "a loop in another file": ("reference", {**AUTOCAST, "data.num_workers": 1}, "cpu"),
    "a model compiled with its loss": ("segment", {"compile.scope": "with_loss", **AUTOCAST}, "cpu"),
    "float16 needs a scaler": ("mnist", HALF, "cuda"),
    "of a notebook, whose later cells import torch": (
        f"import os\nfor name in os.listdir('.'):\n    print(name)\n{HEAD}# %% [markdown]\n# Train\n# %%\n{LOOP}",
        {"cpu.threads": 1, "data.num_workers": 1},
        "cpu",
    ),
    "a switch that the script sets": (f"{HEAD}torch.set_num_threads(7)  # ours\n{LOOP}", {"cpu.threads": 1}, "cpu"),
    "what cannot be written": (f"{HEAD}{LOOP}", {"step.accumulate": 4}, "cpu"),
    "the forward pass beside the backward pass": (
        f"{HEAD}for number, (x, y) in enumerate(loader):\n    action = model(x) > 0\n    if number % 2 == 0:\n"
        "        loss = (model(x) - y).square().mean()\n        optimizer.zero_grad()\n"
        "        loss.backward()\n        optimizer.step()\n",
        AUTOCAST,
        "cpu",
    ),
    "an autocast of the script's own does not undo ours": (
        f"{HEAD}for x, y in loader:\n    optimizer.zero_grad()\n    with torch.autocast('cpu', enabled=False):\n"
        f"        output = model(x)\n    loss = (output - y).square().mean()\n{UPDATE}",
        AUTOCAST,
        "cpu",
    ),
    "a block without gradients stays within": (
        f"{HEAD}for x, y in loader:\n    optimizer.zero_grad()\n    output = model(x)\n    with torch.no_grad():\n"
        f"        # how far it is\n        seen.append(output.mean().item())\n    loss = output.mean()\n{UPDATE}",
        AUTOCAST,
        "cpu",
    ),
    "a name that every branch gives a value": (HEAD + BRANCHES.replace("OTHERWISE", "else"), WITH_LOSS, "cpu"),
    "a name that some branches give a value": (HEAD + BRANCHES.replace("OTHERWISE", "elif False"), WITH_LOSS, "cpu"),
    "an argument without a name": (HEAD.replace("batch_size=8)", "8, False)") + LOOP, {"data.batch_size": 16}, "cpu"),
    "the next batch is read before the backward pass": (
        f"{HEAD}batches = iter(loader)\nx, y = next(batches)\nfor _ in range(6):\n"
        f"    loss = (model(x) - y).square().mean()\n    x, y = next(batches)\n    optimizer.zero_grad()\n{UPDATE}",
        AUTOCAST,
        "cpu",
    ),
    "a function that the loop calls, compiled with its loss": (
        f"{HEAD}@torch.enable_grad()\ndef fit(x, y):\n    optimizer.zero_grad()\n    output = model(x)\n"
        "    loss = (output - y).square().mean()\n    loss.backward()\n    optimizer.step()\n    return loss\n\n\n"
        "for x, y in loader:\n    seen.append(fit(x, y).item())\n",
        WITH_LOSS,
        "cpu",
    ),
    "options of a loader in a dict of the script": (
        HEAD.replace("loader = DataLoader(", "more = {'num_workers': 0}\nloader = DataLoader(").replace(
            "batch_size=8)", "batch_size=8, **more)"
        )
        + LOOP,
        {"data.num_workers": 1, "data.persistent_workers": True, "data.pin_memory": False},
        "cpu",
    ),
    "a script that predicts": (
        "import torch\nmodel = torch.nn.Linear(2, 2)\nfor _ in range(3):\n    output = model(torch.ones(4, 2))\n",
        {"infer.grad": "inference_mode"},
        "cpu",
    ),
    "gradients that are cleared before the loss": (
        f"{HEAD}for x, y in loader:\n    output = model(x)\n    optimizer.zero_grad()\n"
        f"    loss = output.mean()\n{UPDATE}",
        WITH_LOSS,
        "cpu",
    ),
    "two loops, of which the first is measured": (f"{HEAD}{PLAIN}{PLAIN}", AUTOCAST, "cpu"),
    "half-precision weights before there is an optimizer": (HEAD + COPIED, {"precision.weights": "bfloat16"}, "cpu"),
    "half-precision weights without a place for the batch": (HEAD + PLAIN, {"precision.weights": "bfloat16"}, "cpu"),
    "float8 before there is an optimizer": (HEAD + PLAIN, {"precision.float8": "rowwise"}, "cuda"),
    "float8 of a script that predicts": (
        "import torch\nmodel = torch.nn.Linear(2, 2)\nfor _ in range(3):\n    output = model(torch.ones(4, 2))\n",
        {"precision.float8": "tensorwise"},
        "cuda",
    ),
    "passes among others on one line, and comments behind arguments": (
        HEAD.replace(
            "batch_size=8)", "batch_size=8,  # small\n    shuffle=True,  # each epoch\n    # the rest is ours\n)"
        )
        + "second = nn.Linear(1, 1)\nfor x, y in loader:\n    fake = model(x)\n    first = second(y).mean()\n"
        "    optimizer.zero_grad(); first.backward(); optimizer.step()\n    loss = second(fake).mean()\n"
        "    optimizer.zero_grad(); loss.backward(); optimizer.step()\n",
        {**AUTOCAST, "data.num_workers": 1},
        "cpu",
    ),
    "statements on one line": (f"{HEAD}for x, y in loader: {STEP}\n", AUTOCAST, "cpu"),
}


def described(name, folder):
    """The change of a case's files as a diff."""
    script, settings, device = CASES[name]
    path = copies(script, folder) if script in SCRIPTS else folder / "train.py"
    if script not in SCRIPTS:
        path.write_text(script)
    files = changed(path, settings, device=device).files
    for file, text in files.items():
        compile(text, file, "exec")
    return "".join(diff(Path(file).read_text(), text.decode(), Path(file).name) for file, text in files.items())


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_where(name, tmp_path):
    """``RENEW=1 pytest -k written_where`` writes DIFFS: read the difference before you commit it."""
    expected = dict(re.findall(r"^=== (.+)\n((?:(?!===).*\n)*)", DIFFS.read_text(), re.MULTILINE))
    found = described(name, tmp_path)
    if "RENEW" in os.environ:
        sections = {**expected, name: found}
        DIFFS.write_text("".join(f"=== {one}\n{sections.get(one, '')}" for one in CASES))
    else:
        assert found == expected[name]


AHEAD = """
from torch.utils.data import DataLoader

class ahead:
    def __init__(self, *given, **options):
        self.inner = DataLoader(*given, **options)

    def __iter__(self):
        yield from self.inner
"""


class TestPlaces:
    """Changes of several files, and of calls that no diff of one file shows."""

    def test_parts_of_a_module_are_changed_where_the_module_is_made(self, written):
        agent = (
            "class Agent(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.actor, self.critic = nn.Linear(1, 1), nn.Linear(1, 1)\n"
            "    def act(self, x):\n        return self.actor(x) + self.critic(x)\n\n"
        )
        head = HEAD.replace("model = nn.Linear(1, 1)", f"{agent}agent = Agent()").replace("model.", "agent.")
        loop = LOOP.replace("model(x)", "agent.act(x)").replace("model.", "agent.")
        text, _ = written(head + loop, {"compile.mode": "default"})
        assert "agent = Agent()\n# perf-advisor: settings of agent.actor\nagent.actor.compile()\n" in text
        assert "agent.critic.compile()\n" in text

    def test_a_loader_that_a_library_makes_gets_its_options_afterwards(self, written, tmp_path, monkeypatch):
        library = tmp_path / "site-packages"
        library.mkdir()
        (library / "loaders_of.py").write_text(AHEAD)
        monkeypatch.syspath_prepend(str(library))
        making = re.search(r"loader = DataLoader\(.*\n", HEAD)[0]
        head = HEAD.replace(making, "from loaders_of import ahead\n" + making.replace("DataLoader(", "ahead(", 1))
        settings = {"data.num_workers": 2, "data.prefetch_factor": 4, "data.pin_memory": True}
        text, patched = written(head + LOOP, settings, device="cuda")
        lines = ("prefetch_factor = 2", "num_workers = 2", "pin_memory = True", "prefetch_factor = 4")
        assert "".join(f"loader.inner.{line}\n" for line in lines) in text
        assert not patched.left_out
        text, patched = written(head + LOOP, {"data.persistent_workers": True, "data.num_workers": 1})
        assert "loader.inner.num_workers = 1\n" in text
        assert len(patched.left_out) == 1, "a loader refuses it once it is made"

    def test_a_model_is_changed_where_a_method_of_its_class_makes_it(self, written):
        text = (
            "class Other:\n    def __init__(self):\n        self.model = []\n\n"
            "class Trainer:\n    def __init__(self):\n        self.model = None\n\n"
            "    def make(self):\n        self.model = model\n\n    def fit(self):\n"
            f"        for x, y in loader:\n            {STEP.replace('model', 'self.model')}\n\n"
            "trainer = Trainer()\ntrainer.make()\ntrainer.fit()\n"
        )
        changed_text, _ = written(HEAD + text, {"compile.mode": "default"})
        assert changed_text.count(".compile()") == 1
        assert changed_text.count("model.compile()\n") == 1
        assert "self.model = None\n        #" not in changed_text

    def test_what_is_read_from_the_environment_is_set_first_and_what_needs_a_preload_is_named(self, written):
        settings = {"memory.allocator": "expandable_segments", "cpu.allocator": "jemalloc"}
        text, _ = written(HEAD + LOOP, settings, device="cuda")
        assert text.index('os.environ["PYTORCH_CUDA_ALLOC_CONF"] = ') < text.index("import torch")
        text, _ = written(HEAD + LOOP, settings)
        assert "# perf-advisor: not here: cpu.allocator: jemalloc: " in text
        assert re.search(r"#   MALLOC_CONF=\S+,muzzy_decay_ms:-1\n", text), "a name is not cut in two"

    def test_a_file_that_leaves_its_parts_to_a_library_gets_the_switches(self, script):
        loop, _ = script("for x, y in loader:\n    STEP\n")
        facts = dataclasses.replace(facts_of(loop), places=())
        settings = {"cpu.threads": 1, "optimizer.implementation": "fused"}
        patched = patched_files(load_catalog(()), settings, facts, os.path.realpath("train.py"))
        text = patched.files[os.path.realpath("train.py")].decode()
        assert "torch.set_num_threads(1)\n" in text
        assert "# perf-advisor: not here: optimizer.implementation: fused" in text

    def test_an_evaluation_that_records_gradients_gets_a_decorator(self, tmp_path):
        path = copies("reference", tmp_path)
        found = [Finding("eval_no_grad", "reference_engine.py", 38, "", "", "")]
        patched = changed(path, {"cpu.threads": 1}, evaluations=found)
        engine = patched.files[str(tmp_path / "reference_engine.py")].decode()
        assert "\n\n\n@torch.no_grad()\ndef evaluate(" in engine

    def test_a_plain_step_is_captured_by_the_templates_class_and_computes_the_same(self, tmp_path, monkeypatch):
        path = copies("mnist", tmp_path)
        settings = {**GRAPH, "optimizer.implementation": "fused", "data.pin_memory": True}
        patched, before = changed(path, settings, device="cuda"), losses_of(path)
        text = patched.files[str(path)].decode()
        assert text.index("class CapturedStep:") < text.index("def train(") < text.index("    def train_step(data, ")
        assert "    train_step = CapturedStep(train_step, model, optimizer)\n" in text
        assert "        loss = train_step(data, target)\n        if batch_idx" in text
        assert "data.to(device, non_blocking=True)" in text
        assert text.count("\n") - path.read_text().count("\n") < 80, "a person reviews it"
        write_files(patched)
        record_on_cpu(monkeypatch)
        assert losses_of(path) == pytest.approx(before, rel=1e-4)

    def test_a_step_in_a_function_of_the_script_is_captured_above_the_loop(self, tmp_path, monkeypatch):
        body = PLAIN.replace("for x, y in loader:\n", "")
        path = tmp_path / "train.py"
        path.write_text(
            f"import torch\ntorch.manual_seed(0)\n{HEAD}def fit(x, y):\n{body}    return loss\n\n"
            "for epoch in range(4):\n    print(fit(numbers, 2 * numbers).item())\n"
        )
        patched, before = changed(path, GRAPH, device="cuda"), losses_of(path)
        text = patched.files[str(path)].decode()
        assert text.index("def train_step(x, y):") < text.index("def fit(x, y):\n    loss = train_step(x, y)\n")
        assert "\n\ntrain_step = CapturedStep(train_step, model, optimizer)\n\n\nfor epoch" in text
        write_files(patched)
        record_on_cpu(monkeypatch)
        assert losses_of(path) == pytest.approx(before, rel=1e-4)

    def test_a_forward_and_a_backward_pass_in_one_statement_are_captured(self, written):
        step = "    optimizer.zero_grad()\n    (model(x) - y).square().mean().backward()\n    optimizer.step()\n"
        text, _ = written(f"{HEAD}for x, y in loader:\n{step}", GRAPH, device="cuda")
        assert f"\ndef train_step(x, y):\n{step}" in text
        assert "\nfor x, y in loader:\n    train_step(x, y)\n" in text

    def test_updates_behind_several_backward_passes_are_captured(self, written):
        step = (
            "    loss, second = model(x).mean(), other(x).mean()\n    loss.backward()\n    second.backward()\n"
            "    optimizer.step()\n    more.step()\n    optimizer.zero_grad()\n    more.zero_grad()\n"
        )
        others = "other = nn.Linear(1, 1)\nmore = torch.optim.SGD(other.parameters(), lr=1e-4)\n"
        text, _ = written(f"{HEAD}{others}for x, y in loader:\n{step}", GRAPH, device="cuda")
        assert f"\ndef train_step(x):\n{step}" in text
        assert "CapturedStep(train_step, model, more, optimizer)" in text

    def test_a_name_that_only_other_functions_read_as_their_own_is_not_returned(self, written):
        own = "def evaluate(x):\n    output = model(x)\n    return output\n\n"
        loop = f"for x, y in loader:\n    output = model(x)\n    loss = output.mean()\n{UPDATE}    print(loss.item())\n"
        assert "    return loss\n" in written(HEAD + own + loop, WITH_LOSS)[0]
        outer = own.replace("    output = model(x)\n", "")
        assert "    return output, loss\n" in written(HEAD + outer + loop, WITH_LOSS)[0]

    def test_what_only_notes_the_loss_stands_behind_a_captured_step(self, written):
        meter = "class Meter(dict):\n    smooth = None\n\nmeter = Meter()\n"
        noted = (
            "    losses = [loss.item()]\n    meter.update(loss=loss.item())\n    meter.update({'y': y[0]})\n"
            "    # so far\n    total += loss.item()\n    hits += x.eq(y.view_as(x)).cpu().sum()\n"
            "    if mean is None:\n        mean = loss.item()\n    else:\n        mean += loss.item()\n"
        )
        before, behind = noted.split("    # so far\n")
        step = (
            "    optimizer.zero_grad()\n    loss = (model(x) - y).square().mean()\n"
            f"{before}    loss.backward()\n    # so far\n{behind}    optimizer.step()\n"
        )
        script = f"{HEAD}{meter}total, hits, mean = 0, 0, None\nfor x, y in loader:\n{step}"
        text, _ = written(script, {"step.cuda_graph": True}, device="cuda")
        assert f"    loss = train_step(x, y)\n{noted}" in text
        assert "    loss.backward()\n    optimizer.step()\n    return loss\n" in text

    @pytest.mark.parametrize(
        ("loss", "reason"),
        [
            ("loss = loss / loss.item()\n    loss.backward()", "on the host"),
            ("loss.backward()\n    print(model.weight.grad.sum().item())", "on the host"),
            ("loss.backward()\n    print(loss.item())\n    loss = 2 * loss", "on the host"),
            ("loss.backward()\n    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()", "on the host"),
            ("loss.backward()\n    if loss.item() > 1e9:\n        raise ValueError", "on the host"),
            ("seen.append(loss.item())\n    (loss / seen[-1]).backward()", "on the host"),
            ("for part in drawn(y):\n        loss = loss + part.mean()\n    loss.backward()", "may have other rounds"),
            ("loss.backward()\n    if CLIP > 0:\n        nn.utils.clip_grad_norm_(model.parameters(), CLIP)", ""),
            ("if x.ndim > 1:\n        loss = 2 * loss\n    loss.backward()", "branches on the host"),
            ("loss = loss.log()\n    loss.backward()", ""),
            ("loss.backward()\n    schedule.step()", "calls step() on the host"),
            ("loss.backward()\n    print(loss.item(), model.weight.mean().item())", "on the host"),
        ],
    )
    def test_a_step_that_a_graph_cannot_repeat_is_not_captured(self, loss, reason, written):
        drawn = (
            "CLIP = 1.0\nepoch = 0\n\nclass Schedule:\n    def step(self):\n        pass\n\n"
            "schedule = Schedule()\n\ndef drawn(y):\n    return y.split(4)\n\n"
        )
        text, patched = written(
            f"{HEAD}{drawn}for x, y in loader:\n    optimizer.zero_grad()\n"
            f"    loss = (model(x) - y).square().mean()\n    {loss}\n    optimizer.step()\n",
            GRAPH,
            device="cuda",
        )
        assert ("CapturedStep(" in text) is not bool(reason)
        assert reason in "".join(patched.left_out)

    @pytest.mark.parametrize(
        ("settings", "expected"),
        [
            (
                {"compile.mode": "reduce-overhead"},
                'torch.compile(model, backend="eager", mode="reduce-overhead")  # fast',
            ),
            ({"compile.mode": "none"}, 'torch.compile(model, backend="eager", disable=True)  # fast'),
            ({"optimizer.implementation": "fused"}, 'torch.compile(model, backend="eager")  # fast'),
        ],
    )
    def test_a_script_that_compiles_its_model_has_the_mode_in_its_own_call(self, tmp_path, settings, expected):
        path = tmp_path / "train.py"
        call = 'model = torch.compile(model, backend="eager")  # fast'
        path.write_text(f"{HEAD}{call}\nfor x, y in loader:\n    {STEP}\n")
        loop = load_target(TargetSpec(path.name, str(tmp_path), device="cpu"))
        facts = dataclasses.replace(facts_of(loop), current={"compile.mode": "default"})
        text = patched_files(load_catalog(()), settings, facts, str(path)).files[str(path)].decode()
        assert expected in text

    def test_the_arguments_of_a_trainer_say_the_settings(self, tmp_path):
        pytest.importorskip("accelerate")
        pytest.importorskip("transformers")
        path = tmp_path / "train.py"
        path.write_bytes((PUBLIC.parent / "hf_trainer.py").read_bytes())
        loop = load_target(TargetSpec(path.name, str(tmp_path), device="cpu"))
        assert loop.current["loop.loss_item"] == "every_step"  # the Trainer asks whether the loss is a number
        settings = {"precision.autocast": "bfloat16", "loop.loss_item": "never", "model.memory_format": "channels_last"}
        facts = facts_of(loop)
        given = arguments_of_trainer(settings, facts)
        patched = patched_files(load_catalog(()), settings, facts, str(path), arguments=given)
        text = patched.files[str(path)].decode()
        assert "report_to=[], use_cpu=True, bf16=True, logging_nan_inf_filter=False\n)" in text
        assert len(patched.left_out) == 1


CHANGE = {"precision.autocast": "bfloat16", "optimizer.implementation": "fused", "data.num_workers": 1}
LONG = f"""{HEAD}
class Reader:  # \x0c a form feed
    pass
\x0c
for x, y in loader:
    # the forward pass
    output = model(
        x,  # the input

    )
    loss = (
        output - y  # the error
    ).square().mean()   # squared
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    # the end
"""


class TestBadInput:
    @pytest.mark.parametrize(
        "form",
        [lambda text: text, lambda text: text.replace("\n", "\r\n"), lambda text: text.replace("    ", "\t")],
        ids=["plain", "windows", "tabs"],
    )
    def test_all_other_lines_stay_byte_for_byte(self, form, written):
        source = form(LONG)
        text, _ = written(source.encode(), CHANGE)
        compile(text, "train.py", "exec")
        ended = "\r\n" if "\r\n" in source else "\n"
        assert {line.removesuffix("\r") for line in text.split("\n")} == set(text.replace("\r\n", "\n").split("\n"))
        assert text.count(ended) == text.count("\n")
        kept = [line for line in text.split(ended) if "num_workers=1" not in line and "fused=True" not in line]
        kept = [line.strip("\t ") for line in kept if "autocast" not in line]
        changed_lines = ("loader = ", "optimizer = ")
        before = [line.strip("\t ") for line in source.split(ended) if not line.startswith(changed_lines)]
        assert kept == before

    def test_a_file_that_holds_the_changes_is_not_changed_again(self, written):
        settings = {**CHANGE, "cpu.threads": 1}
        once, _ = written(f"{HEAD}for x, y in loader:\n    {STEP}\n", {**settings, "precision.autocast": "none"})
        again, _ = written(once, {**settings, "precision.autocast": "none"})
        assert again == once

    def test_a_file_that_changed_since_says_so(self, tmp_path):
        path = tmp_path / "train.py"
        path.write_text(f"{HEAD}for x, y in loader:\n    {STEP}\n")
        loop = load_target(TargetSpec("train.py", str(tmp_path), device="cpu"))
        path.write_text(f"import os\n{path.read_text()}")
        with pytest.raises(UsageError, match="has changed since it was measured"):
            patched_files(load_catalog(()), CHANGE, facts_of(loop), str(path))


def test_a_build_is_changed_where_it_makes_its_parts(tmp_path):
    path = tmp_path / "made_by_build.py"
    path.write_text(
        "import torch\nfrom torch import nn\n\n\ndef build():\n    model = nn.Conv2d(3, 4, 3)\n"
        "    data = torch.utils.data.TensorDataset(torch.randn(8, 3, 4, 4), torch.randn(8, 4, 2, 2))\n"
        "    loader = torch.utils.data.DataLoader(data, batch_size=4)\n"
        "    return model, loader, nn.MSELoss(), torch.optim.Adam(model.parameters())\n"
    )
    loop = load_target(TargetSpec("made_by_build.py:build", str(tmp_path), device="cpu"))
    assert loop.mode is Mode.TRAIN
    patched = patched_files(
        load_catalog(()), {**CHANGE, "model.memory_format": "channels_last"}, facts_of(loop), str(path)
    )
    text = patched.files[str(path)].decode()
    assert "    model = model.to(memory_format=torch.channels_last)\n    data = " in text
    assert "batch_size=4, num_workers=1)" in text
    assert "Adam(model.parameters(), fused=True)" in text
    assert "# perf-advisor: not here: precision.autocast: bfloat16: write this around the forward pass" in text


OF_IMAGES = """
import torch
from torchvision import datasets, transforms

torch.manual_seed(0)
steps = transforms.Compose([transforms.RandomCROP, transforms.ToTensor()])
loader = torch.utils.data.DataLoader(datasets.DATASET("images", transform=steps), 8, shuffle=True, OPTIONS)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(CHANNELS * 64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.9f}")
"""
OF_MNIST = OF_IMAGES.replace("CROP", "Crop(8, padding=1)").replace("DATASET", "MNIST").replace("CHANNELS", "1")
OF_FILES = OF_IMAGES.replace("CROP", "ResizedCrop(8)").replace("DATASET", "ImageFolder").replace("CHANNELS", "3")
OF_FILES = OF_FILES.replace("OPTIONS", "timeout=0")
OF_WORDS = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(16384, 4), torch.nn.Linear(4, 16384))
optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
for words in torch.randint(16384, (4, 3, 7)):
    scores = model(words)
    loss = F.cross_entropy(scores[:, :-1].reshape(-1, scores.size(-1)), words[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.9f}")
"""
# Settings of which a script says all in two lines: its text, the setting, the losses printed, and how far they may be
# apart; workers have draws of their own.
TWO_LINES = {
    "images kept on the device": (OF_MNIST.replace("OPTIONS", "timeout=0"), {"data.on_device": True}, 10, 0.0),
    "kept in place of workers": (
        OF_MNIST.replace("OPTIONS", '**{"num_workers": 1, "prefetch_factor": 4}'),
        {"data.on_device": True},
        10,
        math.inf,
    ),
    "files decoded smaller": (OF_FILES, {"data.image_decode": "reduced"}, 6, 0.0),
    "files decoded by torchvision": (OF_FILES, {"data.image_decode": "torchvision"}, 6, 0.01),
    "a loss in chunks": (OF_WORDS, {"loss.chunked": True}, 4, 1e-5),
}


@pytest.mark.parametrize("name", TWO_LINES)
def test_settings_that_take_two_lines_give_the_same_losses(name, tmp_path, monkeypatch):
    text, settings, count, most = TWO_LINES[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images" / "a").mkdir(parents=True)
    if "MNIST" in text:
        write_mnist(tmp_path / "images")
    for shade in range(20):
        Image.new("RGB", (10, 9), (200, 10 * shade, 0)).save(tmp_path / "images" / "a" / f"{shade}.jpg")
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    before = losses_of(path)
    result = changed(path, settings)
    assert result.left_out == ()
    old, new = text.splitlines(), result.files[str(path)].decode().splitlines()
    assert len([line for line in new if line not in old]) == 2 or "chunks" in name
    assert "prefetch_factor=None" not in "".join(new), "what a DataLoader has anyway is not written"
    assert "".join(new).count("chunk_loss") == (2 if "chunks" in name else 0)
    write_files(result)
    assert losses_of(path) == pytest.approx(before, abs=most)
    assert len(before) == count


def test_changed_files_run_in_the_place_of_the_originals(tmp_path, monkeypatch):
    monkeypatch.setattr(SourceFileLoader, "get_code", SourceFileLoader.get_code)
    monkeypatch.setattr("advisor.workloads.scripts.files._run_in_place", {})
    monkeypatch.delitem(sys.modules, "reference_engine", raising=False)
    path = copies("reference", tmp_path)
    settings = {"precision.autocast": "bfloat16", "optimizer.implementation": "fused"}
    read_as = {}
    for file, text in changed(path, settings).files.items():
        read_as[file] = str(tmp_path / f"{Path(file).stem}.tuned.py")
        Path(read_as[file]).write_bytes(text)
    del sys.modules["reference_engine"]
    loop = load_target(TargetSpec("reference.py", str(tmp_path), device="cpu", read_as=read_as))
    assert loop.optimizer.defaults["fused"]
    assert loop.current["precision.autocast"] == "bfloat16", "the engine's lines too"
    step = loop.whole_round
    assert all(math.isfinite(float(step(batch))) for batch in step.batches)


@pytest.mark.process
def test_the_command_writes_a_changed_script_and_verifies_it(tmp_path, capfd, monkeypatch):
    path = copies("reference", tmp_path)
    monkeypatch.chdir(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.glob("*.py")}
    command = ["reference.py", "--headless", "--budget", "15s", "--device", "cpu", "--only", "threads,fused_optimizer"]
    files = ["--export", "reference.tuned.py", "--json", "report.json", "--report", "report.md", "--diff"]
    with short_trials():
        assert main([*command, "--accept", "fused_optimizer=fused", *files]) == 0
    said = capfd.readouterr()
    report = json.loads((tmp_path / "report.json").read_text())
    if report["stack"]["settings"]:  # on a busy machine there may be none
        assert "+++ b/reference.py" in said.out
        assert "fused=True" in (tmp_path / "reference.tuned.py").read_text()
        assert "## The change in your file" in (tmp_path / "report.md").read_text()
    assert all((tmp_path / name).read_bytes() == text for name, text in before.items())
    assert path.is_file()
