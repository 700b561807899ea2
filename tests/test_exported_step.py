"""The step of an exported Python file: captured, as data, with only the code that it needs."""

import ast
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch
from exported_module import batches, model_of, module_of, plain_losses
from graph_stand_in import RecordedGraph
from torch import nn

from advisor import step as portable
from advisor.export.python_file import python_source
from advisor.export.top_level import definitions_in
from advisor.recipe.catalog import Catalog, load_catalog

pytestmark = pytest.mark.usefixtures("flags_kept")


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.AdamW])
def test_the_files_own_captured_step_trains_as_a_plain_loop_does(catalog, optimizer_class):
    """With a graph that records operators on the CPU in place of a CUDA graph."""
    data = [*batches(8), *batches(1, size=2), *batches(3)]
    reference, model = model_of(), model_of()
    plain = optimizer_class(reference.parameters(), lr=0.05)
    expected = []
    for at, batch in enumerate(data):
        plain.param_groups[0]["lr"] = 0.05 / (1 + at)
        expected += plain_losses(reference, plain, [batch], None)
    module = module_of(catalog, {"step.cuda_graph": True, "optimizer.implementation": "fused"}, "train")
    model, optimizer, _ = module.prepare(model, optimizer_class(model.parameters(), lr=0.05))
    eager = module.train_step(model, optimizer, nn.functional.cross_entropy)
    step = module.GraphedStep(eager, RecordedGraph())
    losses = []
    for at, batch in enumerate(data):
        optimizer.param_groups[0]["lr"] = 0.05 / (1 + at)
        losses.append(step(batch).item())
    assert losses == pytest.approx(expected, rel=1e-4)
    assert (step.graph.captures, step.graph.replays, step.graph.eager) == (1, 8, 4)


MODULES = {
    *("nested", "calls", "losses", "steps", "watching", "places", "graphed", "contexts", "collector"),
    *("optimizer_steps", "walk", "read_code", "capturing"),
}


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_the_step_of_the_file_is_the_code_of_the_trials(catalog, mode):
    source = python_source(catalog, {"step.cuda_graph": True}, mode)
    taken = [one for module in MODULES for one in definitions_in(module) if not one.is_import and one.text in source]
    assert sum(len(one.text.splitlines()) for one in taken) > len(source.splitlines()) / 2
    tree = ast.parse(source)
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert len(names) == len(set(names))
    assert names[:2] == ["prepare", "train_step" if mode == "train" else "infer_step"]


def test_names_of_portable_modules_are_unique():
    """A file may hold any of them at its top level."""
    modules = [path.stem for path in Path(portable.__file__).parent.glob("*.py") if path.stem != "__init__"]
    names = [
        name
        for module in modules
        for one in definitions_in(module)
        if not one.is_import and not one.is_constant
        for name in one.binds
    ]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_a_file_contains_only_what_it_needs(catalog):
    train, infer = (python_source(catalog, {}, mode) for mode in ("train", "infer"))
    assert "class TrainStep" in train
    assert "class TrainStep" not in infer
    for name in ("class GraphedStep", "class DeviceLoader", "class Watch", "class TensorRates", "def compiled_step"):
        assert name not in train
        assert name not in infer
    assert "class DeviceLoader" in python_source(catalog, {"data.device_prefetch": True}, "train")
    assert "def compiled_step" in python_source(catalog, {"compile.optimizer": True}, "train")


@pytest.mark.parametrize("settings", [{}, {"precision.autocast": "bfloat16"}, {"step.cuda_graph": True}])
def test_a_file_has_no_tries_where_the_form_of_the_loss_is_known(catalog, settings):
    whole, source = (python_source(catalog, settings, "train", loss_known=known) for known in (False, True))
    assert "def form_that_works(" in whole
    assert "def form_that_works(" not in source
    assert len(source.splitlines()) < len(whole.splitlines()) - 200
    model, reference = model_of(), model_of()
    plain = torch.optim.SGD(reference.parameters(), lr=0.05)
    expected = plain_losses(reference, plain, batches(), torch.bfloat16 if "precision.autocast" in settings else None)
    module = ModuleType("tuned")
    exec(compile(source, "tuned.py", "exec"), vars(module))
    model, optimizer, _ = module.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
    step = module.train_step(model, optimizer, nn.functional.cross_entropy)
    assert [step(batch).item() for batch in batches()] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(module.LossError, match="can be called in two ways"):
        module.train_step(model, optimizer, lambda first, second: first(second[0]).sum())


def test_the_header_says_what_to_keep_and_the_file_does_it(catalog):
    source = python_source(catalog, {"precision.autocast": "float16"}, "train")
    assert "(model, optimizer, scheduler, step)" in source.split('"""')[1]
    module = module_of(catalog, {"precision.autocast": "float16"}, "train")
    model = model_of()
    step = module.train_step(model, torch.optim.SGD(model.parameters(), lr=0.01), nn.functional.cross_entropy)
    step(batches(1)[0])
    step.scaler.update(32.0)
    saved = step.state_dict()
    other = module.train_step(model, torch.optim.SGD(model.parameters(), lr=0.01), nn.functional.cross_entropy)
    other.load_state_dict(saved)
    assert other.scaler.get_scale() == 32.0


def test_the_plan_stands_in_the_file_as_data(catalog):
    settings = {"precision.autocast": "bfloat16", "step.zero_grad": "manual", "loop.loss_item": "every_step"}
    module = module_of(catalog, settings, "train")
    given = {"autocast": "bfloat16", "zero_grad": "manual", "loss_item": "every_step", "accumulate": 1}
    assert module.PLAN.items() >= given.items()
    infer = module_of(catalog, {"infer.grad": "no_grad"}, "infer").PLAN
    assert infer["runs_under"] == "no_grad"
    assert not infer.keys() & {"accumulate", "zero_grad", "clip_grad"}


def test_objects_are_batches_of_the_file_too(catalog):
    class Pair:
        def __init__(self, x, y):
            self.x, self.y = x, y

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch.x), batch.y)

    module = module_of(catalog, {"model.memory_format": "channels_last"}, "train")
    model = model_of()
    step = module.train_step(model, torch.optim.SGD(model.parameters(), lr=0.01), loss)
    assert torch.isfinite(step(Pair(*batches(1)[0])))
    assert step.to_device(Pair(*batches(1)[0])).x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("implementation", ["default", "fused"])
def test_the_captured_step_trains_as_a_plain_loop_does(catalog, optimizer_class, implementation):
    data = [tuple(part.cuda() for part in batch) for batch in [*batches(8), *batches(1, size=2), *batches(3)]]
    reference, model = model_of().cuda(), model_of().cuda()
    plain = optimizer_class(reference.parameters(), lr=0.01)
    expected = []
    for inputs, targets in data:
        plain.zero_grad()
        loss = nn.functional.cross_entropy(reference(inputs), targets)
        loss.backward()
        plain.step()
        expected.append(loss.item())
    module = module_of(catalog, {"step.cuda_graph": True, "optimizer.implementation": implementation}, "train")
    model, optimizer, _ = module.prepare(model, optimizer_class(model.parameters(), lr=0.01))
    step = module.train_step(model, optimizer, nn.functional.cross_entropy)
    assert [step(batch).item() for batch in data] == pytest.approx(expected, rel=1e-3)
