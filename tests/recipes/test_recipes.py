"""Checks for every recipe: its card, its values and reasons, its code, and the objects that it must not change."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from facts import LINEAR, adamw_facts, cpu_facts, gpu_facts, loader_facts, profile_facts
from proposals import CATALOG

from advisor.records import Candidate, Mode, Numerics

RECIPES = list(CATALOG)
FACTS = {
    "GPU training, loader": gpu_facts(loader=loader_facts(), profile=profile_facts()),
    "GPU training, AdamW, linear": gpu_facts(loader=loader_facts(), optimizer=adamw_facts(), families=LINEAR),
    "GPU inference, batch": gpu_facts(mode=Mode.INFER),
    "GPU inference, linear in bfloat16": gpu_facts(mode=Mode.INFER, families=LINEAR, parameter_dtypes=("bfloat16",)),
    "CPU training, loader": cpu_facts(loader=loader_facts(), profile=profile_facts()),
    "CPU inference, loader, linear": cpu_facts(mode=Mode.INFER, loader=loader_facts(), families=LINEAR),
    "CPU inference, 3-D": cpu_facts(mode=Mode.INFER, families={"conv3d": 3}),
}
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.id)


def facts_for(recipe):
    """The facts, by name, of those sessions in which the recipe is asked for its values."""
    return {
        name: facts
        for name, facts in FACTS.items()
        if facts.workload.mode in recipe.modes and facts.workload.device_type in recipe.devices
    }


def test_the_sessions_here_ask_every_recipe():
    assert not CATALOG.problems
    assert [recipe.id for recipe in CATALOG if not facts_for(recipe)] == []


@every_recipe
def test_other_values_are_not_accepted(recipe):
    assert not recipe.accepts("no such value")
    assert not recipe.accepts(-1)
    assert not recipe.accepts(10**23)


@every_recipe
def test_candidates_are_values_or_a_reason(recipe):
    for name, facts in FACTS.items():
        proposals = CATALOG.propose(facts, only=[recipe.id])
        for candidate in proposals.candidates:
            assert recipe.accepts(candidate.value), (name, candidate)
            assert candidate.value != recipe.default, name
            assert (why := recipe.why(facts, candidate.value)), (name, candidate)
            assert facts.on_cuda or "tensor cores" not in why, (name, candidate)
            assert isinstance(recipe.numerics_of(candidate.value, facts.workload.mode), Numerics)
        if not proposals.candidates:
            text = proposals.skipped[recipe.id]
            assert len(text.split()) >= 4, name
            assert not text.endswith("."), name
            assert text == text.strip(), name


@every_recipe
def test_what_is_on_already_is_measured_off(recipe):
    for name, facts in facts_for(recipe).items():
        for value in recipe.values:
            present = replace(facts, gpus=2, workload=replace(facts.workload, current={recipe.key: value}))
            candidates = CATALOG.propose(present, only=[recipe.id]).candidates
            assert value not in [candidate.value for candidate in candidates]
            off = [candidate for candidate in candidates if candidate.already_on]
            expected = Candidate(recipe.id, recipe.key, recipe.default, already_on=True)
            assert off == ([] if value == recipe.default else [expected]), (name, value)


def test_the_code_of_a_default_does_not_say_that_the_loop_has_it_already():
    assert CATALOG["checkpointing"].code("none") == "# memory.activation_checkpointing: none, the default\n"


@every_recipe
def test_code_compiles_and_does_not_import_the_advisor(recipe):
    for value in recipe.values:
        text = recipe.code(value)
        compile(text, recipe.id, "exec")
        assert "advisor" not in text, value
        assert text.endswith("\n"), value


def test_proposing_imports_no_torch():
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
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
