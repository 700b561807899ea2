from __future__ import annotations

import builtins
import copy
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from exported_module import batches, model_of, module_of, plain_losses
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from advisor import step as portable
from advisor.errors import UsageError
from advisor.export import top_level
from advisor.export.python_file import python_source
from advisor.export.top_level import bound_by, needs
from advisor.recipe import Components, Recipe, Stage
from advisor.recipe.catalog import Catalog, load_catalog
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.tuning import Tuning

pytestmark = pytest.mark.usefixtures("flags_kept")
ALL_TRAIN = {
    "backends.cudnn_benchmark": True,
    "compile.mode": "default",
    "data.batch_size": 8,
    "data.num_workers": 2,
    "data.pin_memory": True,
    "model.memory_format": "channels_last",
    "optimizer.implementation": "foreach",
    "precision.autocast": "bfloat16",
    "precision.float32_matmul": "high",
    "step.cuda_graph": True,
    "step.zero_grad": "manual",
}
OF_DATA = {
    "data.device_prefetch": True,
    "data.num_workers": 2,
    "data.transforms_on_device": True,
}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        ({}, None),
        ({"precision.autocast": "bfloat16"}, torch.bfloat16),
        ({"step.zero_grad": "zeros"}, None),
        ({"step.zero_grad": "manual", "optimizer.implementation": "foreach"}, None),
        ({"step.cuda_graph": True, "optimizer.implementation": "fused"}, None),
        ({"model.memory_format": "channels_last", "precision.float32_matmul": "high"}, None),
        ({"data.pin_memory": True, "model.memory_format": "contiguous", "compile.mode": "none"}, None),
    ],
)
@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.AdamW])
def test_the_generated_step_trains_as_a_plain_loop_does(catalog, settings, dtype, optimizer_class):
    data = batches()
    reference = model_of()
    expected = plain_losses(reference, optimizer_class(reference.parameters(), lr=0.05), data, dtype)

    module = module_of(catalog, settings, "train")
    model = model_of()
    model, optimizer, loader = module.prepare(model, optimizer_class(model.parameters(), lr=0.05), data)
    step = module.train_step(model, optimizer, nn.functional.cross_entropy)
    losses = [step(batch).item() for batch in loader]

    assert losses == pytest.approx(expected, rel=2e-5)
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_float16_training_scales_its_gradients(catalog, monkeypatch):
    module = module_of(catalog, {"precision.autocast": "float16"}, "train")
    scalers = []
    real = torch.amp.GradScaler
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device: scalers.append(real(device)) or scalers[-1])
    model = model_of()
    step = module.train_step(model, torch.optim.SGD(model.parameters(), lr=0.01), nn.functional.cross_entropy)
    before = copy.deepcopy(model.state_dict())
    loss = step(batches(1)[0])
    assert torch.isfinite(loss)
    assert len(scalers) == 1
    assert scalers[0].get_scale() > 1
    assert any(not torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_both_kinds_of_loss_and_batches_of_names(catalog):
    module = module_of(catalog, {}, "train")
    inputs, targets = batches(1)[0]
    one, other, third = model_of(), model_of(), model_of()

    def on_model(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    first = module.train_step(one, torch.optim.SGD(one.parameters(), lr=0.1), nn.CrossEntropyLoss())((inputs, targets))
    second = module.train_step(other, torch.optim.SGD(other.parameters(), lr=0.1), on_model)((inputs, targets))
    named = {"input": inputs, "labels": targets}
    third.forward = lambda input: nn.Sequential.forward(third, input)  # noqa: A006 - what such models call it
    last = module.train_step(third, torch.optim.SGD(third.parameters(), lr=0.1), nn.CrossEntropyLoss())(named)
    assert first.item() == second.item() == last.item()


@pytest.mark.parametrize("wrap", [dict, SimpleNamespace])
def test_the_loss_that_a_model_returns_by_name_or_by_key(catalog, wrap):
    model = nn.Linear(3, 2)
    model.forward = lambda x: wrap(loss=nn.Linear.forward(model, x).square().mean())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = module_of(catalog, {}, "train").train_step(model, optimizer)
    batch = {"x": torch.ones(4, 3)}
    assert step(batch) > step(batch)


@pytest.mark.parametrize("grad", ["grad", "no_grad", "inference_mode"])
def test_inference_in_each_grad_mode(catalog, grad):
    module = module_of(catalog, {"infer.grad": grad, "step.zero_grad": "zeros", "step.cuda_graph": True}, "infer")
    assert not hasattr(module, "train_step")
    model = model_of().eval()
    inputs, targets = batches(1)[0]
    expected = model(inputs)
    prepared, _, _ = module.prepare(model)
    step = module.infer_step(prepared)
    for batch in (inputs, (inputs,), [inputs, targets], {"input": inputs}):
        output = step(batch)
        torch.testing.assert_close(output, expected)
        assert output.requires_grad == (grad == "grad")
        assert output.is_inference() == (grad == "inference_mode")


def test_prepare_rebuilds_optimizer_and_loader_and_keeps_their_contents(catalog):
    settings = {"data.batch_size": 8, "data.num_workers": 1, "optimizer.implementation": "foreach"}
    module = module_of(catalog, settings, "train")
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.3)
    nn.functional.cross_entropy(model(batches(1)[0][0]), batches(1)[0][1]).backward()
    optimizer.step()
    dataset = TensorDataset(torch.arange(32.0))
    back, tuned, loader = module.prepare(model, optimizer, DataLoader(dataset, batch_size=4, shuffle=True))
    assert back is model
    assert type(tuned) is torch.optim.AdamW
    assert tuned.param_groups[0]["foreach"] is True
    assert (tuned.param_groups[0]["lr"], tuned.param_groups[0]["weight_decay"]) == (0.02, 0.3)
    assert len(tuned.state) == 4
    assert (loader.batch_size, loader.num_workers, loader.dataset) == (8, 1, dataset)
    assert isinstance(loader.sampler, torch.utils.data.RandomSampler)


def test_each_object_may_be_left_out(catalog):
    module = module_of(catalog, {key: value for key, value in ALL_TRAIN.items() if key != "compile.mode"}, "train")
    model = model_of()
    assert module.prepare(model) == (model, None, None)
    data = batches(2)
    assert module.prepare(model, None, data)[2] is data


class Unpacks(nn.Module):
    """A model that cannot be traced: its forward takes a size apart."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
        return self.net(images), tuple(images.shape)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.conv_bias_before_norm", False),
        ("model.fold_batch_norm", True),
    ],
)
def test_what_a_model_that_cannot_be_traced_does_not_allow_is_left_out_with_a_warning(catalog, key, value):
    module = module_of(catalog, {key: value}, "infer")
    model, images = Unpacks().eval(), torch.randn(2, 3, 8, 8)
    before = model(images)[0]
    with pytest.warns(UserWarning, match=f"{key}: .* is left out: the model has a forward that torch.fx cannot follow"):
        model, _, _ = module.prepare(model)
    assert torch.equal(module.infer_step(model)(images)[0], before)


class OwnStep(torch.optim.AdamW):
    """An optimizer with a step of its own."""

    def step(self, closure=None):
        return super().step(closure)


def after_a_step(parameters):
    optimizer = torch.optim.AdamW(parameters)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("key", "value", "make", "reason"),
    [
        ("optimizer.implementation", "fused", torch.optim.RMSprop, "RMSprop has no fused implementation"),
        ("optimizer.implementation", "foreach", OwnStep, "OwnStep has no foreach implementation"),
        (
            "optimizer.implementation",
            "fused",
            lambda parameters: torch.optim.AdamW(parameters, differentiable=True),
            "AdamW cannot be changed",
        ),
        ("optimizer.class", "lars", torch.optim.RMSprop, "Lars takes the place of SGD"),
        ("optimizer.state", "adafactor", torch.optim.SGD, "SGD is neither Adam nor AdamW"),
        ("optimizer.state", "adafactor", after_a_step, "AdamW has made steps"),
        ("memory.activation_checkpointing", "blocks", torch.optim.SGD, "Sequential repeats no block"),
    ],
)
def test_what_an_optimizer_or_a_model_refuses_is_left_out_as_prepare_does(catalog, key, value, make, reason):
    module, told = module_of(catalog, {key: value}, "train"), f"{key}: {value} is left out: {reason}"
    for prepare in (module.prepare, Tuning({key: value}, catalog).prepare):
        model = model_of()
        optimizer = make(model.parameters())
        before, kind = copy.deepcopy(optimizer.param_groups), type(optimizer)
        with pytest.warns(UserWarning, match=told):
            model, optimizer, *_ = prepare(model, optimizer)
        assert type(optimizer) is kind
        kept = [{name: group[name] for name in group if name != "params"} for group in optimizer.param_groups]
        assert kept == [{name: group[name] for name in group if name != "params"} for group in before]


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({}, "train"),
        ({}, "infer"),
        (ALL_TRAIN, "train"),
        (ALL_TRAIN | {"infer.grad": "no_grad"}, "infer"),
        (OF_DATA, "train"),
        (OF_DATA, "infer"),
    ],
)
def test_the_source_is_formatted_and_needs_only_torch(catalog, settings, mode, tmp_path):
    source = python_source(catalog, settings, mode)
    imports = [line for line in source.splitlines() if line.startswith(("import", "from"))]
    modules = {line.split()[1].partition(".")[0] for line in imports}
    assert modules - set(sys.stdlib_module_names) == {"torch"}
    assert len(imports) == len(set(imports))
    assert ("import gc" in imports) is ("class Collector" in source)
    assert "advisor" not in source.replace("perf-advisor", "")
    assert "in the loop" not in source
    ruff = Path(sys.executable).with_name("ruff")
    tool = str(ruff) if ruff.exists() else shutil.which("ruff")
    if tool is None:
        pytest.skip("ruff is not installed")
    path = tmp_path / "tuned.py"
    path.write_text(source)
    for command in (["format", "--diff"], ["check", "--select", "E,F,W,I"]):
        line = [tool, *command, "--isolated", "--line-length", "120", str(path)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("settings", "mode"), [(ALL_TRAIN, "train"), (ALL_TRAIN, "infer"), (OF_DATA, "train")])
def test_every_name_that_the_source_uses_is_in_it(catalog, settings, mode):
    source = python_source(catalog, settings, mode)
    assert set(needs(source)) - set(bound_by(source)) <= set(dir(builtins)) | {"__file__", "__name__"}


def test_the_names_of_a_comprehension_are_its_own():
    """Python 3.12 has them in the scope around it: one of them was taken for a definition that two modules give."""
    code = "SIZES = [len(name) for name in NAMES]\nname = 1\n"
    assert bound_by("SIZES = [len(name) for name in NAMES]") == ("SIZES",)
    assert needs("SIZES = [len(name) for name in NAMES]") == {"len", "NAMES"}
    assert set(bound_by(code)) == {"SIZES", "name"}


def test_a_name_may_be_that_of_a_comprehension_in_a_function():
    code = "import name\n\n\ndef sizes(names):\n    return [len(name) for name in names]\n"
    assert set(bound_by(code)) == {"name", "sizes"}


def test_modules_of_a_step_that_give_a_name_two_meanings_are_refused(monkeypatch):
    texts = {
        "first": "import torch\nLIMIT = 1",
        "second": "from advisor.step.first import LIMIT as FIRST\nLIMIT = 2",
    }
    for module in (portable, top_level):
        monkeypatch.setattr(module, "module_text", texts.get)
    assert list(top_level.definitions_of(("first",))) == ["torch", "LIMIT"]
    with pytest.raises(ValueError, match=r"LIMIT of step/second\.py has another meaning"):
        top_level.definitions_of(("second",))


def test_the_source_says_which_settings_it_holds(catalog):
    source = python_source(catalog, {"precision.autocast": "bfloat16", "infer.grad": "no_grad"}, Mode.TRAIN)
    assert "    precision.autocast: bfloat16\n" in source
    assert "infer.grad" not in source


@pytest.mark.parametrize("mode", ["none", "default", "max-autotune-no-cudagraphs"])
def test_a_model_that_is_compiled_already_is_compiled_anew_or_not_at_all(catalog, mode):
    model = model_of()
    settings = {"model.memory_format": "channels_last", "compile.mode": mode}
    prepared, _, _ = module_of(catalog, settings, "train").prepare(torch.compile(model))
    assert prepared is model
    assert (model._compiled_call_impl is None) is (mode == "none")
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_settings_that_cannot_be_are_refused(catalog):
    with pytest.raises(UsageError, match="no recipe owns"):
        python_source(catalog, {"no.such": 1}, "train")
    with pytest.raises(UsageError, match="cannot be combined"):
        python_source(catalog, {"compile.mode": "reduce-overhead", "step.cuda_graph": True}, "train")
    with pytest.raises(UsageError, match="not a value"):
        python_source(catalog, {"precision.autocast": "float7"}, "train")


class _Early(Recipe):
    id, title, key, default, stage = "early", "Early", "memory.early", False, Stage.ENVIRONMENT

    def candidates(self, facts):
        return [True]

    def apply(self, workload, value):
        pass

    def code(self, value):
        return 'import os\n\nos.environ["EARLY"] = "1"\n'


class _Foreign(_Early):
    id, title, key, stage = "foreign", "Foreign step", "step.foreign", Stage.STEP

    def code(self, value):
        return "loss = loss * 2\nloss.backward()\n"


class _Model(_Early):
    id, title, key, stage = "layers", "Layers", "model.layers", Stage.MODEL

    def code(self, value):
        return "model.marked = device.type\n\n# in the loop: inputs are halved\ninputs = inputs / 2\n"


def test_recipes_of_third_parties_find_their_place():
    catalog = Catalog({recipe.id: recipe for recipe in (_Early(), _Foreign(), _Model())})
    settings = {"memory.early": True, "step.foreign": True, "model.layers": True}
    source = python_source(catalog, settings, "train")
    assert source.index('os.environ["EARLY"] = "1"') < source.index("import torch")
    assert "    #     loss = loss * 2\n" in source
    assert "inputs / 2" not in source
    module = module_of(catalog, settings, "train")
    assert module.prepare(model_of())[0].marked == "cpu"


class _Data(_Early):
    id, title, key, stage = "samples", "Samples", "data.samples", Stage.DATA

    def code(self, value):
        return """\
import copy
from collections.abc import Sequence
from inspect import signature as inspect

LARGEST = 2
kept = [LARGEST]

# Twice as much.
@copy.copy
def double(loader: Sequence, device=LARGEST):
    return [device * each for each in loader]
def on_device(batch):
    return batch, device
def both(batch):
    return on_device(double(batch))
def with_default(batch, own=loader):
    return own
def map_tensors(batch):
    return "mine"
class Half: pass; made = 1
one = 1; two = 2

if loader:
    loader.found = [both([1]), map_tensors(0), one + two, kept, inspect is not None]
"""


class _Again(_Data):
    """Has a constant in common with another recipe."""

    id, title, key = "zagain", "Again", "data.zagain"

    def code(self, value):
        return "LARGEST = 2\n\n\ndef add(x):\n    return x + LARGEST\n\n\nloader.found.append(add(8))\n"


class _Rival(_Data):
    """Has another function of the same name."""

    id, title, key = "zrival", "Rival", "data.zrival"

    def code(self, value):
        return "def double(x):\n    return -x\n\nloader.found.append(double(8))\n"


class _Later(_Early):
    """Binds a name inside prepare() after the loader has been looked after."""

    id, title, key, stage = "zlater", "Later", "model.zlater", Stage.COMPILE

    def code(self, value):
        return "import copy\n\nadd = copy.copy(model)\n"


def prepared_by(*recipes):
    """The exported file with all of these recipes on, in its parts before and from prepare(), and what they found."""
    source = python_source(Catalog({recipe.id: recipe for recipe in recipes}), {r.key: True for r in recipes}, "train")
    module = ModuleType("tuned")
    exec(compile(source, "tuned.py", "exec"), vars(module))
    loader = module.prepare(model_of(), None, DataLoader(TensorDataset(torch.zeros(4))))[2]
    assert module.map_tensors(torch.negative, torch.ones(1)).item() == -1.0  # the file's own
    return *source.split("def prepare("), loader.found


FOUND = [([2], torch.device("cpu")), "mine", 3, [2], True]


def test_what_workers_import_stands_at_the_top_of_the_file():
    head, prepare, found = prepared_by(_Early(), _Data(), _Again())
    before, after = head.split("\n\n# Early")
    assert "import copy\n" in before
    assert "Mapping, MutableMapping, Sequence\n" in before
    assert "import torch  # noqa: E402\n" in after
    assert "\n\nLARGEST = 2\n\n# How a step runs." in after
    assert "\n\n\n# Twice as much.\n@copy.copy\ndef double(" in after
    assert "class Half" in head
    assert "\n\n\ndef add(x):" in head
    assert head.count("def ") == 2
    assert prepare.index("from inspect import") < prepare.index("def on_device") < prepare.index("def both")
    assert found == [*FOUND, 10]


def test_a_name_with_two_meanings_stays_inside_prepare():
    head, _, found = prepared_by(_Data(), _Rival())
    assert "def double" not in head
    assert found == [*FOUND, -8]
    head, _, found = prepared_by(_Data(), _Again(), _Later())
    assert "def double" in head
    assert "def add" not in head
    assert found == [*FOUND, 10]


def test_the_plan_is_the_one_that_the_recipes_make(catalog):
    from advisor.export.python_file import _plan

    for settings in (ALL_TRAIN, {"precision.autocast": "float16", "step.zero_grad": "zeros"}):
        model = model_of()
        loader = DataLoader(TensorDataset(torch.zeros(4)))
        plan = StepPlan(Mode.TRAIN, "cuda", grad_mode="caller")  # as Tuning begins
        parts = Components(model, torch.optim.AdamW(model.parameters()), loader, plan)
        for recipe, value in catalog.in_order(settings):
            if recipe.stage is not Stage.GLOBAL:
                recipe.apply(parts, value)
        assert _plan(catalog.in_order(settings), Mode.TRAIN) == parts.plan


@pytest.mark.parametrize(
    ("settings", "mode"),
    [({"model.conv_bias_before_norm": False}, "train"), ({"model.fold_batch_norm": True}, "infer")],
)
def test_a_model_that_a_file_prepared_can_be_saved_as_a_whole(settings, mode, catalog, monkeypatch):
    tuned = module_of(catalog, settings, mode)
    monkeypatch.setitem(sys.modules, "tuned", tuned)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train(mode == "train")
    expected = copy.deepcopy(model)(images := torch.randn(2, 3, 8, 8))
    tuned.prepare(model, *([torch.optim.SGD(model.parameters())] if mode == "train" else []))
    torch.testing.assert_close(pickle.loads(pickle.dumps(model))(images), expected)
