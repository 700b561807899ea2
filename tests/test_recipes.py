"""What holds for every recipe: its card, its values and reasons, its code, what it leaves whole."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from facts import LINEAR, adamw_facts, cpu_facts, gpu_facts, loader_facts, profile_facts
from proposals import CATALOG
from recipe_workload import components, flags_put_back, mode_for, run_code

from advisor.recipe import HEADINGS, Recipe, card_section
from advisor.records import Candidate, Mode, Numerics, Skip
from advisor.runtime.step import mover_of

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
    "combo_kernels": [False, True],
    "compile_autotune": ["default", "matmuls"],
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
    "host_gc": ["default", "freeze", "scheduled"],
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


def each_value(recipe_ids=None):
    pairs = [(CATALOG[recipe_id], value) for recipe_id in recipe_ids or VALUES for value in VALUES[recipe_id]]
    return pytest.mark.parametrize(("recipe", "value"), pairs, ids=[f"{recipe.id}={value}" for recipe, value in pairs])


@pytest.fixture
def global_flags():
    with flags_put_back():
        yield


def facts_for(recipe):
    """The facts, by name, of those sessions in which the recipe is asked for its values."""
    return {
        name: facts
        for name, facts in FACTS.items()
        if facts.workload.mode in recipe.modes and facts.workload.device_type in recipe.devices
    }


# --- what holds for every recipe ------------------------------------------------------------------------------


def test_the_table_of_values_covers_the_catalogue():
    assert set(VALUES) == set(CATALOG.recipes)
    assert not CATALOG.problems
    assert [recipe.id for recipe in CATALOG if not facts_for(recipe)] == []


@every_recipe
def test_a_card_has_every_heading_and_fits_the_screen(recipe):
    for heading in HEADINGS:
        assert len(card_section(recipe, heading)) > 20, heading
    numerics = card_section(recipe, "Numerics")
    assert numerics.startswith(tuple(Numerics)), "it begins with the class"
    assert recipe.title
    assert not recipe.title.endswith(".")


def test_a_recipe_is_in_the_file_of_its_name():
    modules = {recipe.id: type(recipe).__module__ for recipe in CATALOG}
    assert modules == {name: f"advisor.recipes.{name}" for name in modules}


@every_recipe
def test_the_values_are_accepted_and_others_are_not(recipe):
    for value in (recipe.default, *VALUES[recipe.id]):
        assert recipe.accepts(value), value
    assert not recipe.accepts("no such value")
    assert not recipe.accepts(-1)


@every_recipe
def test_candidates_are_values_or_a_reason(recipe):
    for name, facts in FACTS.items():
        proposals = CATALOG.propose(facts, only=[recipe.id])
        for candidate in proposals.candidates:
            assert recipe.accepts(candidate.value), (name, candidate)
            assert candidate.value != recipe.default, name
            assert recipe.why(facts, candidate.value), (name, candidate)
            assert isinstance(recipe.numerics_of(candidate.value, facts.workload.mode), Numerics)
        if not proposals.candidates:
            text = proposals.skipped[recipe.id]
            assert len(text.split()) >= 4, name
            assert not text.endswith("."), name
            assert text == text.strip(), name


@every_recipe
def test_what_is_on_already_is_measured_off(recipe):
    for name, facts in facts_for(recipe).items():
        for value in VALUES[recipe.id]:
            present = replace(facts, workload=replace(facts.workload, current={recipe.key: value}))
            candidates = CATALOG.propose(present, only=[recipe.id]).candidates
            off = [candidate for candidate in candidates if candidate.already_on]
            expected = Candidate(recipe.id, recipe.key, recipe.default, already_on=True)
            assert off == ([] if value == recipe.default else [expected]), (name, value)


@every_recipe
def test_a_direct_answer_is_a_skip_or_values(recipe):
    for name, facts in facts_for(recipe).items():
        answer = recipe.candidates(facts)
        assert isinstance(answer, Skip) or (len(answer) > 0 and len(set(answer)) == len(answer)), name


@every_recipe
def test_code_compiles_and_does_not_import_the_advisor(recipe):
    for value in VALUES[recipe.id]:
        text = recipe.code(value)
        compile(text, recipe.id, "exec")
        assert "advisor" not in text, value
        assert text.endswith("\n"), value


def test_no_value_conflicts_with_nothing():
    conflicts = [recipe.conflict(value, {}) for recipe in CATALOG for value in VALUES[recipe.id]]
    assert set(conflicts) == {None}


@each_value()
@pytest.mark.usefixtures("global_flags")
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
        "from advisor.recipe.catalog import load_catalog\n"
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
        "from advisor.recipe.catalog import load_catalog\n"
        "catalog = load_catalog()\n"
        "found = catalog.propose(gpu_facts(loader=loader_facts())).candidates\n"
        "text = [catalog[c.recipe].code(c.value) + catalog[c.recipe].why(gpu_facts(), c.value) for c in found]\n"
        "print(len(text), 'torch' in sys.modules)\n"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    count, has_torch = output.split()
    assert int(count) > 10
    assert has_torch == "False"


# --- on a GPU -------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@each_value()
@pytest.mark.usefixtures("global_flags")
def test_code_runs_on_a_gpu(recipe, value):
    if recipe.package and value != recipe.default:
        pytest.importorskip(recipe.package)
    if value in ("regional", "blocks"):
        pytest.skip("this model repeats no block; a test of its own has one that does")
    run_code(recipe, value, components(mode_for(recipe), "cuda"))
    torch.cuda.synchronize()
