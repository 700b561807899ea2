"""What is tried when."""

from __future__ import annotations

import pytest
from facts import cpu_facts, gpu_facts, loader_facts, profile_facts

from advisor.catalog import load_catalog
from advisor.experiment.control import Decision
from advisor.experiment.schedule import schedule, waits
from advisor.records import Bottleneck, Numerics, Objective

CATALOG = load_catalog()


def planned(facts, **options):
    candidates = CATALOG.propose(facts, only=(), skip=("control",)).candidates
    return candidates, schedule(CATALOG, facts, candidates, **{"allow": Numerics.CLOSE, **options})


def recipes(group):
    return [candidate.recipe for candidate in group]


def names(group):
    return [candidate.name for candidate in group]


def bound_by(bottleneck, **changes):
    return gpu_facts(profile=profile_facts(bottleneck=bottleneck), **changes)


def test_every_candidate_is_in_one_group():
    candidates, groups = planned(gpu_facts())
    assert sorted(names(groups.all)) == sorted(names(candidates))
    assert all((groups.prime, groups.rest, groups.expensive, groups.later))


def test_what_most_workloads_gain_from_comes_before_a_stack_is_sought():
    _, groups = planned(bound_by(Bottleneck.COMPUTE))
    usual = {"autocast=bfloat16", "channels_last=channels_last", "cudnn_benchmark=true", "tf32=high"}
    assert usual <= set(names(groups.prime))
    assert "autocast=float16" in names(groups.rest)


def test_usual_values_that_can_show_nothing_alone_wait_for_company():
    _, groups = planned(bound_by(Bottleneck.LAUNCH))
    assert {"step_graph=true", "fused_optimizer=fused"} <= set(names(groups.prime))
    assert {"autocast=bfloat16", "channels_last=channels_last", "cudnn_benchmark=true"} <= set(names(groups.rest))
    _, groups = planned(bound_by(Bottleneck.LAUNCH), doubtful={"fused_optimizer"})
    assert "fused_optimizer=fused" in names(groups.rest)


@pytest.mark.parametrize("bottleneck", [Bottleneck.COMPUTE, Bottleneck.LAUNCH, Bottleneck.MEMORY])
def test_what_attacks_the_bottleneck_is_first_of_its_group(bottleneck):
    _, groups = planned(bound_by(bottleneck))
    attacks = [bottleneck in CATALOG[recipe].attacks for recipe in recipes(groups.prime)]
    assert attacks == sorted(attacks, reverse=True)


def test_what_could_gain_more_comes_first_among_equals():
    """The profile bounds what the optimizer's step could gain, and not what replaying the whole step could."""
    _, groups = planned(bound_by(Bottleneck.LAUNCH))
    assert recipes(groups.prime).index("step_graph") < recipes(groups.prime).index("fused_optimizer")


def test_compilation_is_tried_on_top_of_the_stack():
    _, groups = planned(gpu_facts())
    assert "compile" in recipes(groups.expensive)
    assert all(CATALOG[recipe].expensive for recipe in recipes(groups.expensive))


def test_the_values_of_a_ladder_stay_in_order():
    _, groups = planned(gpu_facts())
    sizes = [candidate.value for candidate in groups.later if candidate.recipe == "batch_size"]
    assert len(sizes) > 2
    assert sizes == sorted(sizes)


def test_fresh_interpreters_come_last_of_the_rest():
    _, groups = planned(cpu_facts())
    stages = [CATALOG[recipe].stage.name == "ENVIRONMENT" for recipe in recipes(groups.rest)]
    assert any(stages)
    assert stages == sorted(stages)


def test_what_needs_consent_waits_until_it_is_given():
    facts = gpu_facts()
    candidates, groups = planned(facts)
    (first, *_) = [candidate for candidate in candidates if candidate.recipe == "batch_size"]
    assert first in groups.later
    assert waits(CATALOG, facts, first, allow=Numerics.CLOSE)
    assert not waits(CATALOG, facts, first, allow=Numerics.CHANGED)
    assert not waits(CATALOG, facts, first, allow=Numerics.CLOSE, decision=Decision.ACCEPTED)
    _, consented = planned(facts, decision={"batch_size": Decision.ACCEPTED}.get)
    assert "batch_size" not in recipes(consented.later)


def test_a_habit_waits_because_the_good_value_is_the_present_one():
    facts = gpu_facts()
    candidates, groups = planned(facts)
    habits = {candidate.recipe for candidate in candidates if CATALOG[candidate.recipe].habit}
    assert habits
    assert habits <= set(recipes(groups.later))


def test_where_the_step_waits_for_data_workers_come_first_and_what_needs_them_on_top():
    _, groups = planned(bound_by(Bottleneck.INPUT, loader=loader_facts()))
    assert recipes(groups.prime)[0] == "num_workers"
    assert {"pin_memory", "gpu_prefetch"} <= set(recipes(groups.company))
    # While the step waits for data they can show nothing alone.
    assert {"channels_last", "autocast"} <= set(recipes(groups.rest))


def test_what_compiles_less_waits_for_what_compiles_more():
    _, groups = planned(gpu_facts(fusable_chains=3))
    fallbacks = [CATALOG[recipe].fallback for recipe in recipes(groups.expensive)]
    assert any(fallbacks)
    assert fallbacks == sorted(fallbacks)


def test_with_memory_as_the_objective_what_saves_it_comes_first():
    facts = bound_by(Bottleneck.COMPUTE, repeated_blocks=(("Block", 12),))
    _, groups = planned(facts, objective=Objective.MEMORY)
    saves = [CATALOG[recipe].saves_memory for recipe in recipes(groups.prime)]
    assert saves == sorted(saves, reverse=True)
    assert "checkpointing" in recipes(groups.prime)[:4]
    assert "channels_last" in recipes(groups.prime)
    assert not any(CATALOG[recipe].saves_memory for recipe in recipes(groups.rest))
    _, usual = planned(facts)
    assert sorted(names(usual.all)) == sorted(names(groups.all))
    assert recipes(usual.prime) != recipes(groups.prime)
