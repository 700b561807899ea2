from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from facts import (
    CONV,
    LINEAR,
    adamw_facts,
    cpu_facts,
    gpu_facts,
    host,
    loader_facts,
    profile_facts,
    sgd_facts,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from advisor.catalog import load_catalog
from advisor.plan import StepPlan
from advisor.recipe import HEADINGS, Components, Recipe, Stage, card_section
from advisor.records import Bottleneck, Candidate, Hardware, Mode, Numerics, Skip
from advisor.runtime.step import mover_of

CATALOG = load_catalog()
RECIPES = list(CATALOG)
FACTS = {
    "GPU training, loader": gpu_facts(loader=loader_facts(), profile=profile_facts()),
    "GPU training, AdamW, linear": gpu_facts(loader=loader_facts(), optimizer=adamw_facts(), families=LINEAR),
    "GPU inference, batch": gpu_facts(mode=Mode.INFER),
    "GPU inference, linear in bfloat16": gpu_facts(
        mode=Mode.INFER, families=LINEAR, parameter_dtypes=("bfloat16",), input_dims=(2,)
    ),
    "CPU training, loader": cpu_facts(loader=loader_facts(), profile=profile_facts()),
    "CPU inference, loader, linear": cpu_facts(mode=Mode.INFER, loader=loader_facts(), families=LINEAR),
    "CPU inference, 3-D": cpu_facts(mode=Mode.INFER, families={"conv3d": 3}, input_dims=(5,)),
}
VALUES = {
    "affinity": ["all", "physical", "node"],
    "allocator": ["default", "expandable_segments", "max_split_size", "cuda_async"],
    "autocast": ["none", "bfloat16", "float16"],
    "batch_size": [0, 8],
    "channels_last": ["contiguous", "channels_last"],
    "checkpointing": ["none", "budget-0.5"],
    "compile": ["none", "default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune"],
    "compile_dynamic": ["auto", True, False],
    "compile_optimizer": [False, True],
    "compile_scope": ["model", "regional", "with_loss"],
    "control": [False, True],
    "conv_bias": [True, False],
    "cpu_freeze": [False, True],
    "create_on_device": [False, True],
    "cudnn_benchmark": [False, True],
    "debug_off": ["none", "anomaly", "profiler"],
    "deterministic_off": [False, True],
    "empty_cache": ["never", "every_step", "every_step_with_del"],
    "eval_no_grad": ["grad", "no_grad", "inference_mode"],
    "float8": ["none", "tensorwise", "rowwise"],
    "flush_denormal": [False, True],
    "fold_norm": [False, True],
    "fuse_pointwise": [False, True],
    "fused_optimizer": ["default", "fused", "foreach", "for-loop"],
    "gpu_prefetch": [False, True],
    "gpu_transforms": [False],
    "grad_accumulation": [1, 2],
    "grad_clip": ["default", "foreach", "for-loop"],
    "half_weights": ["float32", "bfloat16", "float16"],
    "host_allocator": ["malloc", "tcmalloc", "jemalloc"],
    "host_sync": ["as_written"],
    "inference_mode": ["grad", "no_grad", "inference_mode"],
    "inplace_activations": [False, True],
    "interop_threads": [0, torch.get_num_interop_threads()],  # once set, it cannot be set again in this process
    "int8_weights": ["none", "int8wo", "int8dq"],
    "large_batch_optimizer": ["default"],
    "loss_sync": ["never", "every_step", "accumulated"],
    "non_blocking": [False, True],
    "num_workers": [0, 1],
    "openmp": ["default", "bind", "iomp"],
    "optimizer_memory": ["full"],
    "pad_dims": [1, 8, 64],
    "persistent_workers": [False, True],
    "pin_memory": [False, True],
    "prefetch": [2, 4],
    "reduced_reduction": [True, False],
    "sdpa": ["auto", "flash", "cudnn", "efficient", "math"],
    "step_graph": [False, True],
    "tf32": ["highest", "high", "medium"],
    "threads": [0, 1],
    "worker_context": ["default", "fork", "forkserver", "spawn"],
    "worker_threads": [0, 2],
    "zero_grad": ["none", "zeros", "manual"],
}
# What takes parameters or buffers out of a model.
LEAVES_STATE_OUT = {"conv_bias", "fold_norm"}
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.id)


@pytest.fixture(autouse=True)
def _global_flags():
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = True
    for recipe_id in ("deterministic_off", "flush_denormal", "reduced_reduction"):
        CATALOG[recipe_id].apply(components(), CATALOG[recipe_id].default)
    CATALOG["debug_off"].apply(components(), "none")
    CATALOG["checkpointing"].apply(components(), "none")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 2)

    def forward(self, images):
        return self.head(torch.relu(self.norm(self.conv(images))).mean((2, 3)))


def components(mode=Mode.TRAIN, device="cpu", data="loader"):
    torch.manual_seed(0)
    model = Net().to(device).train(mode is Mode.TRAIN)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if mode is Mode.TRAIN else None
    images, labels = torch.randn(16, 3, 8, 8), torch.arange(16) % 2
    batches = {
        "loader": DataLoader(TensorDataset(images, labels), batch_size=4),
        "batch": (images[:4], labels[:4]),
        "callable": lambda size: (images[:size], labels[:size]),
    }
    return Components(model, optimizer, batches[data], StepPlan(mode=mode, device=device), batch_size=4)


def namespace_of(workload):
    device = torch.device(workload.plan.device)
    inputs, targets = next(iter(workload.data))
    return {
        "torch": torch,
        "model": workload.model,
        "optimizer": workload.optimizer,
        "loader": workload.data,
        "loss_fn": nn.CrossEntropyLoss(),
        "device": device,
        "inputs": inputs.to(device),
        "targets": targets.to(device),
    }


def run_code(recipe, value, workload):
    namespace = namespace_of(workload)
    exec(compile(recipe.code(value), f"<{recipe.id}>", "exec"), namespace)
    return namespace


def mode_for(recipe):
    return Mode.TRAIN if Mode.TRAIN in recipe.modes else Mode.INFER


def each_value(recipe_ids=None):
    pairs = [(CATALOG[recipe_id], value) for recipe_id in recipe_ids or VALUES for value in VALUES[recipe_id]]
    return pytest.mark.parametrize(("recipe", "value"), pairs, ids=[f"{recipe.id}={value}" for recipe, value in pairs])


def proposed(recipe_id, facts):
    return [candidate.value for candidate in CATALOG.propose(facts, only=[recipe_id]).candidates]


def reason(recipe_id, facts):
    proposals = CATALOG.propose(facts, only=[recipe_id])
    assert not proposals.candidates
    return proposals.skipped[recipe_id]


# --- what holds for every recipe ------------------------------------------------------------------------------


def test_the_table_of_values_covers_the_catalogue():
    assert set(VALUES) <= set(CATALOG.recipes)
    assert not CATALOG.problems


@every_recipe
def test_a_card_has_every_heading_and_fits_the_screen(recipe):
    for heading in HEADINGS:
        assert len(card_section(recipe, heading)) > 20, heading
    numerics = card_section(recipe, "Numerics")
    assert numerics.startswith(tuple(Numerics)), "it begins with the class"
    assert recipe.title
    assert not recipe.title.endswith(".")


@every_recipe
def test_a_recipe_is_in_the_file_of_its_name(recipe):
    assert type(recipe).__module__ == f"advisor.recipes.{recipe.id}"


@every_recipe
def test_the_default_is_a_value(recipe):
    assert recipe.accepts(recipe.default)
    assert not recipe.accepts("no such value")
    assert not recipe.accepts(-1)


@every_recipe
@pytest.mark.parametrize("name", FACTS)
def test_candidates_are_values_or_a_reason(recipe, name):
    facts = FACTS[name]
    proposals = CATALOG.propose(facts, only=[recipe.id])
    for candidate in proposals.candidates:
        assert recipe.accepts(candidate.value), candidate
        assert candidate.value != recipe.default
        assert recipe.why(facts, candidate.value)
        assert isinstance(recipe.numerics_of(candidate.value, facts.workload.mode), Numerics)
    if not proposals.candidates:
        text = proposals.skipped[recipe.id]
        assert len(text.split()) >= 4
        assert not text.endswith(".")
        assert text == text.strip()


@each_value()
@pytest.mark.parametrize("facts", FACTS.values(), ids=FACTS)
def test_what_is_on_already_is_measured_off(recipe, value, facts):
    if facts.workload.mode not in recipe.modes or facts.workload.device_type not in recipe.devices:
        return
    facts = replace(facts, workload=replace(facts.workload, current={recipe.key: value}))
    off = [candidate for candidate in CATALOG.propose(facts, only=[recipe.id]).candidates if candidate.already_on]
    expected = [] if value == recipe.default else [Candidate(recipe.id, recipe.key, recipe.default, already_on=True)]
    assert off == expected


@every_recipe
@pytest.mark.parametrize("name", FACTS)
def test_a_direct_answer_is_a_skip_or_values(recipe, name):
    facts = FACTS[name]
    if facts.workload.mode not in recipe.modes or facts.workload.device_type not in recipe.devices:
        return
    answer = recipe.candidates(facts)
    assert isinstance(answer, Skip) or (len(answer) > 0 and len(set(answer)) == len(answer))


@each_value()
def test_code_compiles_and_does_not_import_the_advisor(recipe, value):
    assert recipe.accepts(value)
    text = recipe.code(value)
    compile(text, recipe.id, "exec")
    assert "advisor" not in text
    assert text.endswith("\n")


@each_value()
def test_no_value_conflicts_with_nothing(recipe, value):
    assert recipe.conflict(value, {}) is None


@each_value()
def test_applying_keeps_the_workload_whole(recipe: Recipe, value):
    if recipe.package and value != recipe.default:
        pytest.importorskip(recipe.package)
    workload = components(mode_for(recipe))
    shapes = {name: tensor.shape for name, tensor in workload.model.state_dict().items()}
    recipe.apply(workload, value)
    after = {name: tensor.shape for name, tensor in workload.model.state_dict().items()}
    assert after == shapes or (recipe.id in LEAVES_STATE_OUT and after.items() < shapes.items())
    images, labels = next(iter(workload.data))
    assert len(images) == len(labels) == workload.batch_size
    moved = mover_of(workload.plan)(images)
    assert workload.model(moved).shape == (len(images), 2)


def test_importing_the_recipes_imports_no_torch():
    script = (
        "import json, sys\n"
        "from advisor.catalog import load_catalog\n"
        "catalog = load_catalog()\n"
        "print(json.dumps([sorted(catalog.recipes), 'torch' in sys.modules]))\n"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    names, has_torch = json.loads(output)
    assert set(VALUES) <= set(names)
    assert has_torch is False


def test_proposing_imports_no_torch():
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from facts import gpu_facts, loader_facts\n"
        "from advisor.catalog import load_catalog\n"
        "catalog = load_catalog()\n"
        "found = catalog.propose(gpu_facts(loader=loader_facts())).candidates\n"
        "text = [catalog[c.recipe].code(c.value) + catalog[c.recipe].why(gpu_facts(), c.value) for c in found]\n"
        "print(len(text), 'torch' in sys.modules)\n"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    count, has_torch = output.split()
    assert int(count) > 10
    assert has_torch == "False"


# --- effects on the plan --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe_id", "value", "field", "expected"),
    [
        ("channels_last", "channels_last", "memory_format", "channels_last"),
        ("channels_last", "contiguous", "memory_format", "none"),
        ("compile", "max-autotune", "compile_mode", "max-autotune"),
        ("step_graph", True, "cuda_graph", True),
        ("step_graph", False, "cuda_graph", False),
        ("zero_grad", "zeros", "zero_grad", "zeros"),
        ("loss_sync", "every_step", "loss_item", "every_step"),
        ("empty_cache", "every_step_with_del", "empty_cache", "every_step_with_del"),
        ("eval_no_grad", "inference_mode", "grad_mode", "inference_mode"),
        ("pin_memory", True, "non_blocking", True),
        ("inference_mode", "no_grad", "grad_mode", "no_grad"),
        ("half_weights", "bfloat16", "input_dtype", "bfloat16"),
        ("sdpa", "efficient", "attention_backend", "efficient"),
    ],
)
def test_the_plan_says_how_the_step_runs(recipe_id, value, field, expected):
    workload = components()
    CATALOG[recipe_id].apply(workload, value)
    assert getattr(workload.plan, field) == expected


@pytest.mark.parametrize(
    "recipe_id", ["tf32", "threads", "cudnn_benchmark", "control", "fused_optimizer", "num_workers"]
)
def test_other_recipes_leave_the_plan_alone(recipe_id):
    workload = components()
    plan = workload.plan
    CATALOG[recipe_id].apply(workload, VALUES[recipe_id][-1])
    assert workload.plan == plan


# --- apply and code have the same effect ----------------------------------------------------------------------


def effect_of_apply(recipe, value):
    workload = components(mode_for(recipe))
    recipe.apply(workload, value)
    return workload.model, workload.optimizer, workload.data


def effect_of_code(recipe, value):
    namespace = run_code(recipe, value, components(mode_for(recipe)))
    return namespace["model"], namespace["optimizer"], namespace["loader"]


both_ways = pytest.mark.parametrize("effect", [effect_of_apply, effect_of_code], ids=["apply", "code"])


@both_ways
@pytest.mark.parametrize("value", ["high", "medium"])
def test_tf32_sets_both_switches(effect, value):
    torch.backends.cudnn.allow_tf32 = False
    effect(CATALOG["tf32"], value)
    assert torch.get_float32_matmul_precision() == value
    assert torch.backends.cudnn.allow_tf32
    effect(CATALOG["tf32"], "highest")
    assert torch.get_float32_matmul_precision() == "highest"


@both_ways
def test_channels_last_changes_the_weights_strides(effect):
    model, _, _ = effect(CATALOG["channels_last"], "channels_last")
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert not model.conv.weight.is_contiguous()
    model, _, _ = effect(CATALOG["channels_last"], "contiguous")
    assert model.conv.weight.is_contiguous()


def test_channels_last_can_be_taken_back():
    workload = components()
    for value in ("channels_last", "contiguous"):
        CATALOG["channels_last"].apply(workload, value)
    assert workload.model.conv.weight.is_contiguous()


@both_ways
@pytest.mark.parametrize(
    ("value", "fused", "foreach"),
    [("default", None, None), ("fused", True, False), ("foreach", False, True), ("for-loop", False, False)],
)
def test_the_optimizer_is_rebuilt(effect, value, fused, foreach):
    model, optimizer, _ = effect(CATALOG["fused_optimizer"], value)
    group = optimizer.param_groups[0]
    assert (group["fused"], group["foreach"]) == (fused, foreach)
    assert (group["lr"], group["momentum"]) == (0.1, 0.9)
    assert group["params"][0] is model.conv.weight
    model(torch.ones(2, 3, 8, 8)).sum().backward()
    before = model.head.weight.detach().clone()
    optimizer.step()
    assert not torch.equal(model.head.weight, before)


@both_ways
def test_the_optimizers_state_goes_along(effect, monkeypatch):
    workload = components()
    workload.optimizer = torch.optim.AdamW(workload.model.parameters(), foreach=True)
    workload.model(torch.ones(2, 3, 8, 8)).sum().backward()
    workload.optimizer.step()
    monkeypatch.setattr(sys.modules[__name__], "components", lambda mode: workload)
    model, optimizer, _ = effect(CATALOG["fused_optimizer"], "fused")
    assert optimizer.state[model.head.weight]["step"].item() == 1
    assert optimizer.state[model.head.weight]["exp_avg"].abs().sum() > 0


def test_an_implementation_that_the_class_lacks_is_refused():
    workload = components()
    workload.optimizer = torch.optim.RMSprop(workload.model.parameters())
    with pytest.raises(ValueError, match="RMSprop has no fused implementation; it has for-loop, foreach"):
        CATALOG["fused_optimizer"].apply(workload, "fused")


@both_ways
def test_num_workers_rebuilds_the_loader(effect):
    _, _, loader = effect(CATALOG["num_workers"], 2)
    assert (loader.num_workers, loader.persistent_workers, loader.batch_size) == (2, True, 4)
    _, _, loader = effect(CATALOG["num_workers"], 0)
    assert (loader.num_workers, loader.persistent_workers) == (0, False)


@both_ways
def test_pin_memory_rebuilds_the_loader(effect):
    _, _, loader = effect(CATALOG["pin_memory"], True)
    assert (loader.pin_memory, loader.batch_size) == (True, 4)


@both_ways
def test_batch_size_rebuilds_the_loader(effect):
    _, _, loader = effect(CATALOG["batch_size"], 8)
    assert [len(labels) for _, labels in loader] == [8, 8]
    _, _, loader = effect(CATALOG["batch_size"], 0)
    assert loader.batch_size == 4


@both_ways
def test_threads_are_set(effect):
    effect(CATALOG["threads"], 1)
    assert torch.get_num_threads() == 1
    effect(CATALOG["threads"], 0)
    assert torch.get_num_threads() == 1


@both_ways
def test_cudnn_benchmark_is_set(effect):
    effect(CATALOG["cudnn_benchmark"], True)
    assert torch.backends.cudnn.benchmark is True
    effect(CATALOG["cudnn_benchmark"], False)
    assert torch.backends.cudnn.benchmark is False


@pytest.mark.parametrize("value", ["none", "zeros", "manual"])
def test_the_code_clears_the_gradients(value):
    workload = components()
    workload.model(torch.ones(2, 3, 8, 8)).sum().backward()
    run_code(CATALOG["zero_grad"], value, workload)
    gradient = workload.model.head.weight.grad
    assert gradient.abs().sum() == 0 if value == "zeros" else gradient is None


@pytest.mark.parametrize(("value", "records"), [("grad", True), ("no_grad", False), ("inference_mode", False)])
def test_the_code_runs_without_gradients(value, records):
    output = run_code(CATALOG["inference_mode"], value, components(Mode.INFER))["output"]
    assert output.requires_grad is records
    assert output.is_inference() is (value == "inference_mode")


def test_the_code_compiles_the_model(monkeypatch):
    modes = []
    monkeypatch.setattr(torch, "compile", lambda model, mode: modes.append(mode) or ("compiled", model))
    workload = components()
    assert run_code(CATALOG["compile"], "max-autotune", workload)["model"] == ("compiled", workload.model)
    assert run_code(CATALOG["compile"], "none", workload)["model"] is workload.model
    assert modes == ["max-autotune"]


# --- batch size -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["loader", "batch", "callable"])
def test_every_kind_of_data_gets_the_new_batch_size(data):
    workload = components(data=data)
    before = workload.data
    CATALOG["batch_size"].apply(workload, 8)
    assert workload.batch_size == 8
    if data == "callable":
        assert workload.data is before
    else:
        images, labels = next(iter(workload.data)) if data == "loader" else workload.data
        assert len(images) == len(labels) == 8


def test_a_captured_step_promises_the_same_numbers_in_inference_only():
    assert CATALOG["step_graph"].numerics_of(True, Mode.TRAIN) is Numerics.CLOSE
    assert CATALOG["step_graph"].numerics_of(True, Mode.INFER) is Numerics.EXACT


def test_batch_sizes_double_from_the_present_one():
    assert proposed("batch_size", gpu_facts())[:4] == [64, 128, 256, 512]
    assert proposed("batch_size", gpu_facts(mode=Mode.INFER))[-1] == 256 * 32
    assert CATALOG["batch_size"].numerics_of(64, Mode.TRAIN) is Numerics.CHANGED
    assert CATALOG["batch_size"].numerics_of(64, Mode.INFER) is Numerics.CLOSE


def test_a_batch_is_not_larger_than_the_dataset():
    assert proposed("batch_size", gpu_facts(loader=loader_facts(length=5))) == [64, 128]
    assert "smaller than two batches" in reason("batch_size", gpu_facts(loader=loader_facts(length=1)))


def test_a_batch_that_cannot_fit_is_left_out():
    profile = profile_facts(flops_per_step=10**14)
    assert proposed("batch_size", gpu_facts(profile=profile, device_memory_bytes=400 * 10**9)) == [64, 128]
    assert "not to fit" in reason("batch_size", gpu_facts(profile=profile, device_memory_bytes=10**11))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"resizable_batch": False}, "cannot be resized"),
        ({"loader": loader_facts(custom_batch_sampler=True, batch_size=None)}, "batch sampler of its own"),
        ({"loader": loader_facts(batch_size=None)}, "whole batches"),
        ({"batch_size": None}, "cannot be told"),
    ],
)
def test_a_batch_size_that_cannot_change_is_skipped(changes, expected):
    assert expected in reason("batch_size", cpu_facts(**changes))


# --- when a recipe applies ------------------------------------------------------------------------------------


def test_tf32_needs_ampere_and_float32_products():
    assert proposed("tf32", gpu_facts()) == ["high", "medium"]
    assert "7.5 has no TensorFloat-32" in reason("tf32", gpu_facts(capability=(7, 5)))
    assert "no parameter is in float32" in reason("tf32", gpu_facts(parameter_dtypes=("bfloat16",)))
    assert "no linear" in reason("tf32", gpu_facts(families={"embedding": 1}))
    assert "autocast" in reason("tf32", gpu_facts(current={"precision.autocast": "bfloat16"}))
    assert "needs a CUDA GPU" in reason("tf32", cpu_facts())


def test_channels_last_follows_the_convolutions():
    assert proposed("channels_last", cpu_facts()) == ["channels_last"]
    assert proposed("channels_last", gpu_facts(families={"conv3d": 2})) == ["channels_last_3d"]
    assert "no 2-D or 3-D convolution" in reason("channels_last", gpu_facts(families=LINEAR))
    assert "one format only" in reason("channels_last", gpu_facts(families={**CONV, "conv3d": 1}))


def test_compile_needs_a_compiler(monkeypatch):
    toolchain = importlib.import_module("advisor.toolchain")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: f"/bin/{name}")
    assert proposed("compile", cpu_facts()) == ["default", "max-autotune-no-cudagraphs"]
    assert proposed("compile", gpu_facts()) == VALUES["compile"][1:]
    assert "too old for Triton" in reason("compile", gpu_facts(capability=(6, 1)))
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    assert "needs a C++ compiler on the CPU" in reason("compile", cpu_facts())
    assert "install gcc or clang" in reason("compile", gpu_facts())
    monkeypatch.setenv("CXX", "my-compiler")
    monkeypatch.setenv("CC", "my-c")
    assert "$CXX names, my-compiler, is not found" in reason("compile", cpu_facts())
    assert "$CC names, my-c, is not found" in reason("compile", gpu_facts())


def test_compile_names_the_compiler_that_is_there(monkeypatch):
    toolchain = importlib.import_module("advisor.toolchain")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(toolchain.sys, "platform", "linux")
    monkeypatch.setattr(toolchain.shutil, "which", {"clang++": "/bin/clang++"}.get)
    assert reason("compile", cpu_facts()).endswith("set CXX=clang++ to use that one")


def test_one_graph_at_a_time():
    step_graph, compiler = CATALOG["step_graph"], CATALOG["compile"]
    for mode in ("reduce-overhead", "max-autotune"):
        assert "CUDA graphs of its own" in step_graph.conflict(True, {"compile.mode": mode})
        assert "CUDA graphs of its own" in compiler.conflict(mode, {"step.cuda_graph": True})
        assert step_graph.conflict(False, {"compile.mode": mode}) is None
    assert step_graph.conflict(True, {"compile.mode": "default", "precision.autocast": "bfloat16"}) is None
    assert compiler.conflict("default", {"step.cuda_graph": True}) is None


def test_a_gradient_scaler_cannot_be_captured():
    float16 = {"precision.autocast": "float16"}
    assert "GradScaler" in CATALOG["step_graph"].conflict(True, float16)
    assert CATALOG["step_graph"].conflict(True, {**float16, "infer.grad": "no_grad"}) is None
    assert "GradScaler" in reason("step_graph", gpu_facts(current=float16))
    assert proposed("step_graph", gpu_facts(mode=Mode.INFER, current=float16)) == [True]


def test_only_optimizers_that_can_be_captured():
    assert proposed("step_graph", gpu_facts()) == [True]
    assert proposed("step_graph", gpu_facts(optimizer=adamw_facts())) == [True]
    adagrad = sgd_facts(name="Adagrad")
    assert reason("step_graph", gpu_facts(optimizer=adagrad)).startswith("Adagrad counts its steps on the host")


def test_implementations_other_than_the_default_one():
    assert proposed("fused_optimizer", gpu_facts()) == ["fused", "for-loop"]
    assert proposed("fused_optimizer", cpu_facts()) == ["fused", "foreach"]
    rmsprop = sgd_facts(name="RMSprop", implementations=("for-loop", "foreach"))
    assert proposed("fused_optimizer", gpu_facts(optimizer=rmsprop)) == ["for-loop"]
    assert proposed("fused_optimizer", gpu_facts(optimizer=sgd_facts(name="Adagrad"))) == ["for-loop"]
    lbfgs = sgd_facts(name="LBFGS", implementations=("for-loop",))
    assert "LBFGS has neither" in reason("fused_optimizer", gpu_facts(optimizer=lbfgs))
    assert "no optimizer" in reason("fused_optimizer", gpu_facts(optimizer=None))


def test_cudnn_benchmark_needs_convolutions():
    assert proposed("cudnn_benchmark", gpu_facts()) == [True]
    assert reason("cudnn_benchmark", gpu_facts(families=LINEAR)) == "the step computes no convolution"


@pytest.mark.parametrize(
    ("recipe_id", "called"),
    [
        ("cudnn_benchmark", "conv1d"),
        ("channels_last", "conv2d"),
        ("channels_last", "conv3d"),
        ("tf32", "batched_product"),
        ("sdpa", "attention"),
        ("reduced_reduction", "linear"),
        ("reduced_reduction", "batched_product"),
    ],
)
def test_what_a_step_calls_without_a_module_counts_too(recipe_id, called):
    families = {"embedding": 1}
    assert "the step" in reason(recipe_id, gpu_facts(families=families, profile=profile_facts()))
    assert proposed(recipe_id, gpu_facts(families=families, profile=profile_facts(called=(called,))))


def test_an_optimizer_of_another_package_is_not_taken_for_pytorchs_of_that_name():
    own = sgd_facts(builtin=False)
    assert "takes no `capturable`" in reason("step_graph", gpu_facts(optimizer=own))
    assert "SGD of another package" in reason("large_batch_optimizer", gpu_facts(optimizer=own, batch_size=8192))
    assert "AdamW of another package" in reason(
        "optimizer_memory", gpu_facts(optimizer=adamw_facts(builtin=False, state_bytes=10**12))
    )


@pytest.mark.parametrize(("cores", "expected"), [(1, [1]), (2, [2, 1]), (6, [6, 4, 2, 1]), (8, [8, 4, 2, 1])])
def test_workers_are_tried_from_the_number_of_cores_down(cores, expected):
    assert proposed("num_workers", cpu_facts(loader=loader_facts(), usable_cores=cores)) == expected
    assert CATALOG["num_workers"].ladder


@pytest.mark.parametrize(
    ("wait_ms", "expected"), [(90.0, [16, 8, 4, 2, 1]), (50.0, [8, 4, 2, 1]), (20.0, [2, 1]), (5.0, [1])]
)
def test_no_more_workers_are_tried_than_a_tuned_step_could_use(wait_ms, expected):
    waits = profile_facts(step_ms=100.0, phases={"data wait": wait_ms, "forward": 100 - wait_ms})
    facts = cpu_facts(loader=loader_facts(), profile=waits, usable_cores=16)
    assert proposed("num_workers", facts) == expected


def test_workers_are_not_tried_where_they_cannot_help():
    waits_little = profile_facts(phases={"data wait": 0.3, "forward": 99.7})
    assert reason("num_workers", cpu_facts(loader=loader_facts(), profile=waits_little)) == (
        "data wait is 0.3 % of the step"
    )
    assert "does not come from a DataLoader" in reason("num_workers", cpu_facts())
    assert "iterable dataset" in reason("num_workers", cpu_facts(loader=loader_facts(iterable_dataset=True)))


def test_workers_that_are_on_are_measured_off():
    loader = loader_facts(num_workers=2)
    waits_little = profile_facts(phases={"data wait": 0.1, "forward": 99.9})
    facts = cpu_facts(loader=loader, profile=waits_little, usable_cores=4, current={"data.num_workers": 2})
    assert proposed("num_workers", facts) == [4, 0]


@pytest.mark.parametrize(
    ("recipe_id", "present", "values"),
    [
        ("num_workers", 2, [4, 6, 0]),
        ("num_workers", 3, [4, 6, 0]),
        ("num_workers", 16, [6, 4, 2, 1, 0]),
        ("prefetch", 4, [8, 2]),
        ("grad_accumulation", 4, [8, 1]),
        ("grad_accumulation", 8, [4, 2, 1]),
    ],
)
def test_a_ladder_is_climbed_from_where_one_stands(recipe_id, present, values):
    loader = loader_facts(num_workers=present if recipe_id == "num_workers" else 2)
    facts = cpu_facts(loader=loader, usable_cores=6, current={CATALOG[recipe_id].key: present})
    assert proposed(recipe_id, facts) == values


def test_pinned_memory_needs_a_loader():
    assert proposed("pin_memory", gpu_facts(loader=loader_facts())) == [True]
    assert "DataLoader" in reason("pin_memory", gpu_facts())


FORKED = """
import sys
import torch
from torch import nn
from advisor.catalog import load_catalog
from advisor.recipe import Components

class Forked(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        left = torch.jit.fork(self.left, x)
        return self.right(x) + torch.jit.wait(left)

by_code, value = sys.argv[1] == "code", torch.get_num_interop_threads() + 1
recipe, model = load_catalog()["interop_threads"], torch.jit.script(Forked())
for _ in range(2):  # the second time there is nothing to change
    exec(recipe.code(value)) if by_code else recipe.apply(Components(model, None, None, None), value)
assert torch.get_num_interop_threads() == value
assert model(torch.ones(2, 4)).shape == (2, 4)

from advisor.trial.inspection import _families
print(_families(model), _families(nn.Sequential(nn.Linear(2, 2), torch.jit.script(nn.Linear(2, 2)))))
"""


@pytest.mark.parametrize("way", ["apply", "code"])
def test_operators_beside_one_another_get_their_threads(way, tmp_path):
    script = tmp_path / "forked.py"
    script.write_text(FORKED)
    command = [sys.executable, "-W", "ignore", str(script), way]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown == "{'forked': 1} {'linear': 1}\n"


def test_only_what_forks_gets_threads_for_operators():
    forked = cpu_facts(families={"forked": 1}, usable_cores=8)
    assert proposed("interop_threads", forked) == [1, 4, 8]
    assert proposed("interop_threads", cpu_facts(families={"forked": 1}, usable_cores=1)) == [1]
    assert "no part of it is TorchScript that forks" in reason("interop_threads", cpu_facts())


def test_threads_other_than_the_present_number():
    assert proposed("threads", cpu_facts(threads=16)) == [8]
    many = Hardware(host=host(physical_cores=8, usable_cores=16))
    busy = cpu_facts(threads=8, hardware=many, loader=loader_facts(num_workers=4))
    assert proposed("threads", busy) == [12, 16]
    alone = Hardware(host=host(physical_cores=1, usable_cores=1))
    assert "nothing else to try" in reason("threads", cpu_facts(threads=1, usable_cores=1, hardware=alone))


@pytest.mark.parametrize("name", FACTS)
def test_the_control_runs_everywhere(name):
    assert proposed("control", FACTS[name]) == [True]
    assert CATALOG["control"].numerics_of(True, FACTS[name].workload.mode) is Numerics.EXACT


def test_the_reason_to_try_is_the_bottleneck():
    profile = profile_facts(bottleneck=Bottleneck.INPUT, evidence="it waits 20 % for data.")
    text = CATALOG["num_workers"].why(cpu_facts(loader=loader_facts(), profile=profile), 2)
    assert text == "The step is bound by input: it waits 20 % for data."


def test_stages_put_the_loader_before_the_step():
    order = [recipe.id for recipe, _ in CATALOG.in_order({recipe.key: recipe.default for recipe in RECIPES})]
    assert order.index("channels_last") < order.index("fused_optimizer") < order.index("batch_size")
    assert order.index("batch_size") < order.index("compile") < order.index("step_graph")
    assert CATALOG["threads"].stage is Stage.GLOBAL


# --- on a GPU -------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.AdamW, None])
def test_the_graphs_code_trains_as_eager_steps_do(optimizer_class):
    mode = Mode.TRAIN if optimizer_class else Mode.INFER
    workload = components(mode, "cuda")
    if optimizer_class:
        workload.optimizer = optimizer_class(workload.model.parameters(), lr=0.01)
    graphed = run_code(CATALOG["step_graph"], True, workload)
    torch.cuda.synchronize()
    eager = components(mode, "cuda")
    if optimizer_class is None:
        with torch.no_grad():
            torch.testing.assert_close(graphed["static_output"], eager.model(graphed["inputs"]))
        return
    optimizer = optimizer_class(eager.model.parameters(), lr=0.01)
    for _ in range(4):  # three to warm up and one replay; recording runs nothing
        optimizer.zero_grad()
        nn.functional.cross_entropy(eager.model(graphed["inputs"]), graphed["targets"]).backward()
        optimizer.step()
    # By their outputs: the bias before the batch norm has no gradient but rounding, which AdamW makes full steps of.
    have, want = graphed["model"](graphed["inputs"]), eager.model(graphed["inputs"])
    torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@each_value()
def test_code_runs_on_a_gpu(recipe, value):
    if recipe.package and value != recipe.default:
        pytest.importorskip(recipe.package)
    if value in ("regional", "blocks"):
        pytest.skip("this model repeats no block; a test of its own has one that does")
    run_code(recipe, value, components(mode_for(recipe), "cuda"))
    torch.cuda.synchronize()
