"""The speed-up that a recipe expects of a value, before it is measured: the order of the search's moves."""

from dataclasses import replace

import pytest
from facts import LINEAR, adamw_facts, gpu_facts, loader_facts, profile_facts
from proposals import CATALOG, reason
from test_recipes import FACTS, RECIPES

from advisor.records import Bottleneck, Mode, Numerics

WITHOUT_PROFILE = {name: replace(facts, profile=None) for name, facts in FACTS.items()}
PROFILED = {
    "busy": profile_facts(device_busy_share=0.97, bottleneck=Bottleneck.COMPUTE),
    "idle": profile_facts(device_busy_share=0.02, bottleneck=Bottleneck.LAUNCH),
    "waits": profile_facts(phases={"data wait": 99.9, "forward": 0.1}),
    "no phases": profile_facts(phases={}),
}
BF16 = {"precision.autocast": "bfloat16"}


def all_facts():
    yield from WITHOUT_PROFILE.items()
    for name, facts in FACTS.items():
        for kind, profile in PROFILED.items():
            yield f"{name}, {kind}", replace(facts, profile=profile)


def gain(recipe_id, value, facts):
    return CATALOG.expected_gain(recipe_id, facts, value, {})


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.id)
def test_a_figure_is_a_believable_factor(recipe):
    for name, facts in all_facts():
        for value in recipe.values:
            assert 0.2 < recipe.expected_gain(facts, value) <= 10.0, (name, value)


def test_no_change_gains_nothing():
    for recipe in RECIPES:
        for facts in WITHOUT_PROFILE.values():
            present = facts.current(recipe.key, recipe.default)
            assert CATALOG.expected_gain(recipe.id, facts, present) == 1.0, recipe.id


def test_dropping_a_value_loses_what_adding_it_gains():
    facts = gpu_facts(parameters=50_000_000)
    added = gain("autocast", "bfloat16", facts)
    dropped = CATALOG.expected_gain("autocast", facts, "none", BF16)
    assert added == 1.5
    assert dropped == pytest.approx(1 / added)


def test_a_captured_step_gains_what_the_device_idles():
    for share, expected in ((0.9, 1 / 0.9), (0.5, 2.0), (0.05, 8.0), (0.0, 8.0)):
        facts = gpu_facts(profile=profile_facts(device_busy_share=share))
        assert gain("step_graph", True, facts) == pytest.approx(expected)
    assert gain("step_graph", True, gpu_facts()) == 1.3


def test_workers_gain_the_time_that_the_step_waits():
    loader = loader_facts()
    waits = gpu_facts(loader=loader, profile=profile_facts(phases={"data wait": 80.0, "forward": 20.0}))
    assert gain("num_workers", 2, waits) == pytest.approx(1 / 0.4)
    assert gain("num_workers", 16, waits) == pytest.approx(5.0)
    assert gain("num_workers", 16, gpu_facts(loader=loader)) == 1.5
    has_some = gpu_facts(loader=loader_facts(num_workers=4), current={"data.num_workers": 4})
    assert gain("num_workers", 16, has_some) == 1.0


def test_the_time_that_is_usually_saved_of_a_phase_is_gained():
    facts = gpu_facts(loader=loader_facts(), profile=profile_facts(phases={"host-to-device": 50.0, "forward": 50.0}))
    assert gain("gpu_prefetch", True, facts) == pytest.approx(2.0)
    assert gain("pin_memory", True, facts) == pytest.approx(1 / (1 - 0.7 * 0.5))
    assert gain("gpu_transforms", True, facts) == 1.02, "no step waits for data"
    assert gain("pin_memory", True, gpu_facts(loader=loader_facts())) == 1.1, "no phase was timed"


def test_files_decoded_smaller_gain_more_than_files_decoded_faster():
    waits = gpu_facts(loader=loader_facts(), profile=profile_facts(phases={"data wait": 80.0, "forward": 20.0}))
    assert gain("image_decode", "torchvision", waits) == pytest.approx(1 / (1 - 0.3 * 0.8))
    assert gain("image_decode", "reduced", waits) == pytest.approx(1 / (1 - 0.5 * 0.8))


CAPTURED, COMPILED = {"step.cuda_graph": True}, {"compile.mode": "default"}
SMALL, LARGE = gpu_facts(parameters=1_000_000), gpu_facts(families=LINEAR, parameters=100_000_000)


@pytest.mark.parametrize(
    ("recipe_id", "value", "facts", "beside", "expected"),
    [
        ("autocast", "bfloat16", SMALL, {}, 1.1),  # autocast pays on small models once the step is captured
        ("autocast", "bfloat16", SMALL, CAPTURED, 1.5),
        ("tf32", "high", LARGE, {}, 1.3),  # TensorFloat-32 is nothing beside half precision
        ("tf32", "high", LARGE, BF16, 1.0),
        # A vocabulary is worth padding, a layer of few outputs is not.
        ("pad_dims", 8, gpu_facts(current=BF16, paddable_outputs=((8, 1, 50257),)), {}, 1.06),
        ("pad_dims", 8, gpu_facts(current=BF16, paddable_outputs=((8, 1, 65),)), {}, 1.0),
        ("compile_scope", "with_loss", LARGE, COMPILED, 1.05),  # alone, the scope with the loss compiles, too
        ("compile_scope", "with_loss", LARGE, {}, 1.3 * 1.05),
    ],
)
def test_what_else_is_on_and_what_the_model_is_made_of_decide(recipe_id, value, facts, beside, expected):
    assert CATALOG.expected_gain(recipe_id, facts, value, beside) == pytest.approx(expected)


@pytest.mark.parametrize("recipe_id", ["create_on_device", "eval_no_grad"])
def test_what_the_profile_alone_can_tell_waits_for_it(recipe_id):
    assert reason(recipe_id, gpu_facts()) == "known only after the step was profiled"
    phases = profile_facts(phases_alone=True)
    assert reason(recipe_id, gpu_facts(profile=phases)) == "known only after the step was profiled"


def test_the_whole_expert_stack_is_proposed_without_a_profile():
    facts = gpu_facts(loader=loader_facts(), optimizer=adamw_facts(), families=LINEAR | {"conv2d": 3})
    usual = {
        candidate.recipe: candidate.value
        for candidate in CATALOG.propose(facts).candidates
        if CATALOG[candidate.recipe].is_usual(candidate.value, Mode.TRAIN)
        and CATALOG[candidate.recipe].numerics_of(candidate.value, Mode.TRAIN) is not Numerics.CHANGED
    }
    stack = {"autocast", "channels_last", "compile_scope", "fused_optimizer", "step_graph", "tf32", "pin_memory"}
    assert stack <= set(usual)
