"""The exported Python file: run in a plain loop beside the trial's step; its size, its form, and what it leaves out."""

import ast
import copy
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from exported_module import batches, model_of, module_of, plain_losses
from facts import gpu_facts
from graph_stand_in import record_on_cpu
from PIL import Image
from tiny_mnist import write_mnist
from torch import nn
from torch.nn.modules import transformer
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from torchvision.datasets import MNIST, ImageFolder
from torchvision.transforms import Compose, Resize, ToTensor, v2

from advisor.errors import UsageError
from advisor.python.file import WrittenFor, python_source
from advisor.recipe import Recipe, Stage
from advisor.recipe.catalog import REMOVED, Catalog, load_catalog
from advisor.records import BatchForm, LoaderFacts, OptimizerFacts

pytestmark = pytest.mark.usefixtures("flags_kept")
ADAM = OptimizerFacts("AdamW", "foreach", ("for-loop", "foreach", "fused"), capturable=True, tensors=8)
SGD = replace(ADAM, name="SGD", capturable=False)
FACTS = gpu_facts(optimizer=ADAM).workload
LOADER = LoaderFacts(4, 0, False, False, None, 8, False, False)
AUTOCAST = {"precision.autocast": "bfloat16"}
FUSED = {"optimizer.implementation": "fused"}
STACK = {**AUTOCAST, **FUSED, "model.memory_format": "channels_last", "compile.scope": "with_loss"}
GRAPH = {"step.cuda_graph": True}
AROUND_LOSS = {"step.cuda_graph": "around_loss"}
WORKERS = {"data.num_workers": 2, "data.pin_memory": True, "data.persistent_workers": True}
LOADED = replace(FACTS, loader=LOADER)
MOVABLE = replace(FACTS, loader=replace(LOADER, movable_transforms=("ToDtype", "Normalize")))
ON_DEVICE = {"data.transforms_on_device": True}
AROUND = {"step.create_on_device": True, "step.zero_grad": "zeros"}
HALF = {"precision.autocast": "float16", "step.zero_grad": "manual", "data.device_prefetch": True}
DDP = {"parallel.strategy": "ddp", "parallel.gradient_as_bucket_view": True, "parallel.no_sync": True}


def form(kind: str, target: str, *inputs: str) -> BatchForm:
    return BatchForm(kind, inputs, target)


TENSOR, PARTS = form("tensor", "", "batch"), form("list", "batch[1]", "batch[0]")
KEYWORDS = form("nested", "", "**batch")
CE = nn.functional.cross_entropy
PAIR, GAN = WrittenFor("output_target", PARTS, FACTS), WrittenFor("step", TENSOR, FACTS)
# Settings, the loop, the workload, and the most lines.
CASES = {
    "autocast": (AUTOCAST, "train", PAIR, 40),
    "fused": (FUSED, "train", PAIR, 40),
    "stack": (STACK, "train", PAIR, 80),
    "graph": ({**STACK, **GRAPH}, "train", PAIR, 130),
    "around the loss": ({**AUTOCAST, **FUSED, **AROUND_LOSS}, "train", PAIR, 90),
    "loader": ({**STACK, **GRAPH, **WORKERS}, "train", replace(PAIR, facts=LOADED), 160),
    "inference": (AUTOCAST, "infer", WrittenFor("", TENSOR, FACTS), 40),
    "gan": (GRAPH, "train", GAN, 160),
    "unknown batch": (GRAPH, "train", replace(GAN, batch_form=None), 160),
    "scaled": ({**HALF, **GRAPH}, "train", WrittenFor("own", KEYWORDS, replace(LOADED, clip_norm=1.0)), 160),
    "accumulated": ({"step.accumulate": 2, **AROUND}, "train", replace(PAIR, loss_form="model_batch"), 60),
    "own graphs": ({"compile.mode": "reduce-overhead"}, "infer", WrittenFor("", form("list", "", "*batch"), FACTS), 50),
    "regional": (
        {**GRAPH, "compile.scope": "regional"},
        "infer",
        WrittenFor("", TENSOR, replace(FACTS, repeated_blocks=(("Block", 2),))),
        110,
    ),
    "inference graph": ({**GRAPH, "infer.grad": "inference_mode"}, "infer", WrittenFor("", KEYWORDS, FACTS), 110),
    "ddp": ({**DDP, **GRAPH}, "train", PAIR, 130),
    "transforms": ({**WORKERS, **ON_DEVICE}, "train", replace(PAIR, facts=MOVABLE), 110),
}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.mark.parametrize("name", CASES)
def test_the_source_is_short_formatted_and_needs_only_torch(catalog, name, tmp_path):
    settings, mode, workload, most = CASES[name]
    source = python_source(catalog, settings, mode, workload)
    assert len(source.splitlines()) <= most
    imports = [line for line in source.splitlines() if line.startswith(("import", "from"))]
    assert {line.split()[1].partition(".")[0] for line in imports} - set(sys.stdlib_module_names) <= {"torch"}
    assert "advisor" not in source.replace("perf-advisor", "").replace("advisor.load", "")
    tool = str(ruff) if (ruff := Path(sys.executable).with_name("ruff")).exists() else shutil.which("ruff")
    if tool is None:
        pytest.skip("ruff is not installed")
    path = tmp_path / "tuned.py"
    path.write_text(source)
    for command in (["format", "--diff"], ["check", "--select", "E,F,W,I"]):
        line = [tool, *command, "--isolated", "--line-length", "100", str(path)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_header_has_the_figure_the_settings_the_use_and_what_else_is_needed(catalog):
    settings = {"precision.autocast": "float16", "infer.grad": "no_grad", "precision.float8": "none"}
    measured = '1.5x for "m.py:build" a\\b'
    header = ast.get_docstring(ast.parse(python_source(catalog, settings, "train", replace(PAIR, measured=measured))))
    assert f"measured to be faster: {measured}.\n" in header
    assert "Settings: precision.autocast: float16, precision.float8: none.\n" in header
    assert "step = train_step(model, optimizer, loss_fn)  # loss_fn(output, target)" in header
    assert "step.scaler.state_dict()" in header
    compile(python_source(catalog, settings, "train", replace(PAIR, measured='"""')), "tuned.py", "exec")
    assert "Needs torchao." in python_source(catalog, {"precision.float8": "tensorwise"}, "train", PAIR)
    on_cpu = WrittenFor(facts=replace(FACTS, device="cpu"))
    assert "LD_PRELOAD=" in python_source(catalog, {"cpu.allocator": "jemalloc"}, "train", on_cpu)
    assert "cpu.allocator" not in python_source(catalog, {"cpu.allocator": "jemalloc"}, "train", PAIR)


def test_what_the_file_lacks_is_one_comment_and_said_in_its_header(catalog):
    for key, value in {**AROUND_LOSS, "data.transforms_on_device": True, "parallel.no_sync": True}.items():
        source = python_source(catalog, {key: value}, "train", replace(PAIR, loss_form="model_batch", facts=LOADED))
        lacks = rf"Not in this file: {key}: \w+\. It needs more code; advisor\.load applies it\."
        assert re.search(f"    # {lacks}\n", source)
        assert re.search(lacks, " ".join(ast.get_docstring(ast.parse(source)).split()))
        assert len(source.splitlines()) <= 40
    for other in ({"step.zero_grad": "zeros"}, {"parallel.strategy": "ddp"}):
        assert "make_graphed_callables" not in python_source(catalog, {**AROUND_LOSS, **other}, "train", PAIR)


def test_settings_of_recipes_that_left_are_not_exported(catalog):
    """A session of an earlier version is still exported."""
    removed = Catalog({name: recipe for name, recipe in catalog.recipes.items() if recipe.key not in REMOVED})
    for key, reason in REMOVED.items():
        with pytest.warns(UserWarning, match=f"{key}: true is left out.*{reason}"):
            assert removed.without_removed({key: True, **AUTOCAST}) == AUTOCAST
    with pytest.warns(UserWarning, match="parallel.strategy.* is left out"):
        assert catalog.without_removed({"parallel.strategy": "data_parallel", **AUTOCAST}) == AUTOCAST


def test_settings_that_cannot_be_are_refused(catalog):
    wrong = {"no recipe owns": {"no.such": 1}, "not a value": {"precision.autocast": "float7"}}
    for said, settings in {**wrong, "cannot be combined": {"compile.mode": "reduce-overhead", **GRAPH}}.items():
        with pytest.raises(UsageError, match=said):
            python_source(catalog, settings, "train")


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        ({}, None),
        (AUTOCAST, torch.bfloat16),
        ({"step.zero_grad": "zeros"}, None),
        ({"step.zero_grad": "manual", "optimizer.implementation": "foreach"}, None),
        ({"model.memory_format": "channels_last", "precision.float32_matmul": "high"}, None),
        ({"model.memory_format": "contiguous", "compile.mode": "none"}, None),
    ],
)
@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.AdamW])
def test_the_step_trains_as_a_plain_loop_does(catalog, settings, dtype, optimizer_class):
    data, reference, model = batches(), model_of(), model_of()
    expected = plain_losses(reference, optimizer_class(reference.parameters(), lr=0.05), data, dtype)
    module = module_of(catalog, settings, "train", PAIR)
    model, optimizer, loader = module.prepare(model, optimizer_class(model.parameters(), lr=0.05), data)
    step = module.train_step(model, optimizer, CE)
    assert [step(batch).item() for batch in loader] == pytest.approx(expected, rel=2e-5)
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("zero_grad", ["none", "zeros", "manual"])
def test_gradients_are_added_up_clipped_and_scaled(catalog, zero_grad):
    facts, settings = replace(FACTS, clip_norm=0.1), {"step.accumulate": 2, "step.zero_grad": zero_grad}
    module = module_of(catalog, settings, "train", replace(PAIR, facts=facts))
    model, reference = model_of(), model_of()
    step = module.train_step(model, torch.optim.SGD(model.parameters(), lr=0.1), CE)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for first, second in zip(*[iter(batches(4))] * 2, strict=True):
        optimizer.zero_grad()
        losses = [CE(reference(x), y) for x, y in (first, second)]
        sum(loss / 2 for loss in losses).backward()
        nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
        assert [step(first).item(), step(second).item()] == pytest.approx([loss.item() for loss in losses])
        optimizer.step()
    module = module_of(catalog, {"precision.autocast": "float16"}, "train", replace(PAIR, facts=facts))
    step = module.train_step(model, torch.optim.SGD(model.parameters(), lr=0.01), CE)
    before = copy.deepcopy(model.state_dict())
    assert torch.isfinite(step(batches(1)[0]))
    assert step.scaler.get_scale() > 1
    assert any(not torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("grad", ["grad", "no_grad", "inference_mode"])
def test_inference_in_each_grad_mode(catalog, grad):
    forms = {TENSOR: lambda x, y: x, PARTS: lambda x, y: (x, y), form("list", "", "*batch"): lambda x, y: [x]}
    (batch,), model = batches(1), model_of().eval()
    for batch_form, wrapped in forms.items():
        module = module_of(catalog, {"infer.grad": grad}, "infer", WrittenFor("", batch_form, FACTS))
        prepared, _, _ = module.prepare(model)
        output = module.infer_step(prepared)(wrapped(*batch))
        torch.testing.assert_close(output, model(batch[0]))
        assert output.requires_grad == (grad == "grad")
        assert output.is_inference() == (grad == "inference_mode")


def test_an_output_of_a_graph_is_the_callers(catalog, graphs_on_cpu):
    module = module_of(catalog, GRAPH, "infer", WrittenFor("", TENSOR, FACTS))
    model = model_of()
    step, inputs = module.infer_step(model), [batch[0] for batch in batches(8)]
    outputs = [step(one) for one in inputs]
    for one, output in zip(inputs, outputs, strict=True):
        torch.testing.assert_close(output, model(one).detach())
    assert len(step.graphs) == 1


@pytest.mark.parametrize(("settings", "hears"), [({}, False), ({"compile.scope": "regional"}, True)])
def test_the_steps_before_a_graph_of_compiled_blocks_hear_that_it_is_recorded(
    catalog, graphs_on_cpu, monkeypatch, settings, hears
):
    """Libraries ask, and go another way then; what a compiler makes for that way it can't make in the recording."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    facts = replace(FACTS, repeated_blocks=(("Block", 2),))
    heard = list[bool]()

    class Asking(nn.Linear):
        def forward(self, inputs):
            heard.append(torch.cuda.is_current_stream_capturing())
            return super().forward(inputs)

    module = module_of(catalog, {**GRAPH, **settings}, "infer", WrittenFor("", TENSOR, facts))
    module.infer_step(Asking(4, 3))(torch.randn(2, 4))
    assert heard == [hears]


def test_pytorchs_transformers_do_not_read_a_mask_in_a_graph(catalog, monkeypatch):
    monkeypatch.setattr(transformer, "_detect_is_causal_mask", transformer._detect_is_causal_mask)
    facts = replace(FACTS, repeated_blocks=(("TransformerEncoderLayer", 2),))
    module_of(catalog, GRAPH, "infer", WrittenFor("", TENSOR, facts)).prepare(nn.Linear(1, 1))
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    assert not transformer._detect_is_causal_mask(mask, None, 3)
    assert transformer._detect_is_causal_mask(mask, True, 3)


def two_models():
    """A step that trains two models with an optimizer in an object and another in its closure; and these objects."""
    torch.manual_seed(0)
    one, other = nn.Linear(4, 4), nn.Linear(4, 4)
    near = SimpleNamespace(optimizer=torch.optim.SGD(one.parameters(), lr=0.1, fused=True))
    optimizer = torch.optim.Adam(other.parameters(), lr=0.01, fused=True)

    def step(batch):
        near.optimizer.zero_grad()
        optimizer.zero_grad()
        loss = (one(batch) - other(batch)).square().mean()
        loss.backward()
        near.optimizer.step()
        optimizer.step()
        return {"loss": loss.detach()}

    return step, one, near.optimizer, optimizer


def test_a_captured_step_of_ones_own_finds_its_optimizers(catalog, graphs_on_cpu):
    """It follows a rate and goes on with a state that is loaded."""
    module = module_of(catalog, GRAPH, "train", GAN)
    (mine, model, *optimizers), (plain, _, *others) = two_models(), two_models()
    model, _, _ = module.prepare(model, optimizers[0])
    step = module.own_step(mine, model)
    assert set(map(id, step.optimizers)) == set(map(id, optimizers))
    for at, batch in enumerate(torch.randn(16, 6, 4)):
        for sgd, adam in (optimizers, others):
            if at == 6:
                sgd.param_groups[0]["lr"] = 0.01
            if at == 10:
                adam.load_state_dict(copy.deepcopy(adam.state_dict()))
        assert step(batch)["loss"].item() == pytest.approx(plain(batch)["loss"].item()), at
    assert len(step.graphs) == 1


def test_an_own_step_runs_under_what_the_settings_put_around_it(catalog):
    module = module_of(catalog, AUTOCAST, "train", replace(GAN, batch_form=None))
    model, seen = nn.Linear(4, 2), []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    step = module.own_step(lambda batch: model(batch[0]["x"]).sum(), model)
    assert step(({"x": torch.ones(2, 4)}, "name")).ndim == 0
    assert seen == [torch.bfloat16]


@pytest.fixture
def graphs_on_cpu(monkeypatch):
    record_on_cpu(monkeypatch)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True)


def graphed(catalog, optimizer, facts=SGD, **settings):
    settings = {**GRAPH, "optimizer.implementation": "fused", **settings}
    module = module_of(catalog, settings, "train", replace(PAIR, facts=replace(FACTS, optimizer=facts)))
    model = model_of()
    model, tuned, _ = module.prepare(model, optimizer(model.parameters()))
    return model, tuned, module.train_step(model, tuned, CE)


@pytest.mark.parametrize("captured", [True, False])
def test_rates_shapes_and_options_are_followed(catalog, captured, graphs_on_cpu):
    """A schedule, a rate by hand, another momentum, a frozen layer, a smaller batch; update inside or behind."""
    how = {} if captured else {"optimizer.implementation": "for-loop"}
    model, tuned, step = graphed(catalog, momentum, **how)
    reference = model_of()
    plain = momentum(reference.parameters())
    plain.param_groups[0].update({} if captured else {"fused": False, "foreach": False})
    schedules = [torch.optim.lr_scheduler.ExponentialLR(one, 0.9) for one in (tuned, plain)]
    data = [*batches(14), *batches(5, size=2)]
    for at, (inputs, targets) in enumerate(data):
        for one, net in ((tuned, model), (plain, reference)):
            if at == 6:
                one.param_groups[0]["lr"] = 0.05
            if at == 9:
                one.param_groups[0]["momentum"] = 0.5
            if at == 13:
                net[0].requires_grad_(False)
        plain.zero_grad()
        loss = CE(reference(inputs), targets)
        loss.backward()
        plain.step()
        assert step((inputs, targets)).item() == pytest.approx(loss.item(), rel=1e-4), at
        for schedule in schedules:
            schedule.step()
    assert len(step.graphs) == (3 if captured else 2)


def test_shapes_beyond_the_eighth_run_as_usual_and_a_recapture_or_a_loaded_state_forgets(catalog, graphs_on_cpu):
    _, tuned, step = graphed(catalog, momentum)
    for _ in range(2):
        for size in range(1, 11):
            for batch in batches(5, size=size):
                assert torch.isfinite(step(batch))
        assert len(step.graphs) == 8
        step.recapture()
        assert not step.graphs
    for batch in batches(5):
        step(batch)
    assert len(step.graphs) == 1
    tuned.load_state_dict(copy.deepcopy(tuned.state_dict()))
    step(batches(1)[0])
    assert not step.graphs


def test_settings_of_a_loader_make_one_loader(catalog, tmp_path):
    settings = {**WORKERS, "data.batch_size": 8, "data.num_workers": 1}
    workload = replace(PAIR, facts=replace(FACTS, loader=LOADER))
    assert python_source(catalog, settings, "train", workload).count("DataLoader(") == 1
    module, model = module_of(catalog, settings, "train", workload), model_of()
    dataset = TensorDataset(torch.arange(32.0))
    optimizer = torch.optim.SGD(model.parameters())
    _, _, loader = module.prepare(model, optimizer, DataLoader(dataset, batch_size=4, shuffle=True, drop_last=True))
    assert (loader.batch_size, loader.num_workers, loader.dataset) == (8, 1, dataset)
    assert isinstance(loader.sampler, torch.utils.data.RandomSampler)
    assert loader.drop_last
    module = module_of(catalog, {"data.on_device": True, "data.batch_size": 8}, "train", workload)
    _, _, loader = module.prepare(model, optimizer, DataLoader(dataset, batch_size=4))
    assert torch.equal(next(iter(loader))[0], torch.arange(8.0))
    write_mnist(tmp_path)
    images = DataLoader(MNIST(tmp_path, transform=ToTensor()), batch_size=8, num_workers=1, prefetch_factor=2)
    _, _, loader = module.prepare(model, optimizer, images)
    assert torch.equal(next(iter(loader))[0], next(iter(images))[0])
    (tmp_path / "files" / "class").mkdir(parents=True)
    Image.new("RGB", (9, 8), (200, 0, 100)).save(tmp_path / "files" / "class" / "a.jpg")
    files = ImageFolder(tmp_path / "files", transform=Compose([Resize(4), ToTensor()]))
    module = module_of(catalog, {"data.image_decode": "torchvision"}, "train", workload)
    _, _, loader = module.prepare(model, optimizer, DataLoader(files))
    assert loader.dataset is not files
    torch.testing.assert_close(next(iter(loader))[0], next(iter(DataLoader(files)))[0], rtol=0, atol=2 / 255)
    assert "make batches of 8 samples" in python_source(catalog, {"data.batch_size": 8}, "train", PAIR)
    iterable = replace(FACTS, loader=replace(LOADER, iterable_dataset=True))
    assert "sampler" not in python_source(catalog, settings, "train", replace(PAIR, facts=iterable))


class Images(Dataset):
    """Random images in bytes, with a transform of each."""

    def __init__(self):
        steps = [v2.CenterCrop(4), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2, 0.4, 0.8])]
        self.transform = v2.Compose(steps)
        self.images = torch.randint(256, (8, 3, 6, 6), dtype=torch.uint8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.transform(self.images[index]), index


@pytest.mark.parametrize("part", [lambda dataset: dataset, lambda dataset: Subset(dataset, range(8))])
def test_a_datasets_last_transforms_run_on_whole_batches(catalog, part):
    module = module_of(catalog, ON_DEVICE, "train", replace(PAIR, facts=MOVABLE))
    dataset, model = Images(), model_of()
    expected = next(iter(DataLoader(part(dataset), batch_size=4)))
    _, _, loader = module.prepare(model, torch.optim.SGD(model.parameters()), DataLoader(part(dataset), batch_size=4))
    assert dataset[0][0].dtype == torch.uint8
    for tensor, wanted in zip(next(iter(loader)), expected, strict=True):
        torch.testing.assert_close(tensor, wanted)


@pytest.mark.compile
def test_a_model_is_compiled_in_place_or_not_at_all(catalog):
    module = module_of(catalog, {"compile.mode": "max-autotune-no-cudagraphs"}, "train", PAIR)
    model, names = model_of(), list(model_of().state_dict())
    prepared, _, _ = module.prepare(model, None)
    assert prepared is model
    assert list(model.state_dict()) == names
    assert model._compiled_call_impl is not None
    module = module_of(catalog, {"compile.mode": "none"}, "train", PAIR)
    assert module.prepare(torch.compile(model), None)[0] is model


@pytest.mark.compile
def test_blocks_are_compiled_by_their_class(catalog):
    facts = replace(FACTS, repeated_blocks=(("Linear", 2),))
    module = module_of(catalog, {"compile.scope": "regional"}, "infer", replace(PAIR, facts=facts))
    model = module.prepare(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))[0]
    assert [part._compiled_call_impl is not None for part in model] == [True, False, True]


class _Early(Recipe):
    id, title, key, default, stage = "early", "Early", "memory.early", False, Stage.ENVIRONMENT
    codes: ClassVar = {True: 'import os\n\nos.environ["EARLY"] = "1"\n'}

    def candidates(self, facts):
        return [True]


class _Foreign(_Early):
    id, title, key, stage = "foreign", "Foreign step", "step.foreign", Stage.STEP
    codes: ClassVar = {True: "loss = loss * 2\nloss.backward()\n"}


class _Model(_Early):
    id, title, key, stage = "layers", "Layers", "model.layers", Stage.MODEL
    shown = (
        "import copy\nfrom collections import abc\n\nSIZE = 2\n\n\n# Twice.\ndef marked(model):\n"
        "    return copy.copy(model), SIZE, abc\n\n\nmodel.marked = *marked(model)[1:2], device.type, torch.e > 2\n"
        "# in the loop: inputs are halved\n"
    )
    codes: ClassVar = {}


def test_recipes_of_third_parties_find_their_place():
    catalog = Catalog({recipe.id: recipe for recipe in (_Early(), _Foreign(), _Model())})
    settings = {"memory.early": True, "step.foreign": True, "model.layers": True}
    source = python_source(catalog, settings, "train", PAIR)
    assert source.index('os.environ["EARLY"] = "1"') < source.index("import torch")
    assert "    #     loss = loss * 2\n" in source
    assert "in the loop:" not in source
    assert source.index("# Twice.\ndef marked") < source.index("def prepare")
    assert module_of(catalog, settings, "train", PAIR).prepare(model_of())[0].marked == (2, "cpu", True)
