"""The parts of a session that run no trials: what is kept back, how far it is, and what the person is warned of."""

from __future__ import annotations

from dataclasses import replace

import pytest
from facts import cpu_facts, gpu_facts, loader_facts, profile_facts

from advisor.catalog import load_catalog
from advisor.experiment import events
from advisor.experiment.baseline import BaselineMeasurements
from advisor.experiment.bench import Bench
from advisor.experiment.budget import Budget
from advisor.experiment.caveats import warn_of_noise
from advisor.experiment.context import SessionContext
from advisor.experiment.control import Decision
from advisor.experiment.decisions import Decisions
from advisor.experiment.head_start import may_compile_beside, start_interpreters
from advisor.experiment.journal import Journal
from advisor.experiment.judge import Judge
from advisor.experiment.planning import Planning, facts_under
from advisor.experiment.progress import Progress
from advisor.experiment.request import Request
from advisor.experiment.reserves import Reserves
from advisor.experiment.solo import SoloTrials
from advisor.experiment.stack_trials import StackTrials
from advisor.records import Block, Candidate, Mode, Objective, Outcome, StackRecord, TargetSpec, TrialResult
from advisor.runner import Runner
from advisor.settings import Settings

BUDGET_S = 100.0
VALUES = ("zeros", "manual", "none")
MEASURED = TrialResult(Outcome.MEASURED, blocks=(Block(10, 100, 1.0),) * 6, losses=(1.0,), batch_size=10)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def told():
    return []


@pytest.fixture
def context(tmp_path, monkeypatch, clock, told):
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(tmp_path))
    request, catalog = Request(TargetSpec("target.py", str(tmp_path), device="cpu"), budget_s=BUDGET_S), load_catalog()
    budget, journal = Budget(BUDGET_S, clock), Journal.create(request)
    bench = Bench(request, Runner(), budget, journal, told.append, environment=catalog.environment)
    bench.budget.saw(2.0, cost=0)
    reserves = Reserves(bench)
    progress = Progress(bench, reserves, told.append)
    return SessionContext(request, catalog, bench, Decisions(), reserves, progress, told.append)


def posted(told, kind):
    return [event for event in told if isinstance(event, kind)]


# --- what is kept back ----------------------------------------------------------------------------------------


def test_solo_trials_leave_time_for_the_stack_and_its_confirmation(context, clock):
    reserves = context.reserves
    assert reserves.compile_s() == 0
    assert reserves.solo_s() > reserves.stack_s() == reserves.confirmation_s() > 0
    clock.now = BUDGET_S - reserves.solo_s() - 1.0
    assert not reserves.affordable()
    assert reserves.affordable(reserve_s=0.0)
    assert not reserves.affordable(cost=1.0, reserve_s=0.0)


def test_a_fresh_interpreter_has_the_time_to_import(context, clock):
    budget, reserves = context.bench.budget, context.reserves
    ordinary = context.bench.spec("ordinary", {}, reserve_s=95.0)
    budget.interpreter_s = 6.0
    apart = context.bench.spec("apart", {"memory.allocator": "expandable_segments"}, reserve_s=95.0)
    assert apart.environment
    assert apart.timeout_s == pytest.approx(ordinary.timeout_s + 6.0, abs=0.01)
    clock.now = BUDGET_S - 5.0
    assert reserves.affordable(reserve_s=0.0)
    assert not reserves.affordable(fresh=True, reserve_s=0.0)
    assert "about 8 s" in reserves.too_late(fresh=True)


def test_what_would_fit_but_for_what_comes_after_it_is_told_so(context, clock):
    reserves = context.reserves
    clock.now = BUDGET_S - 3.0
    assert not reserves.affordable()
    assert reserves.too_late() == (
        "it needs about 2 s, and what the budget has left is kept for what comes after it; raise --budget to try it"
    )
    clock.now = BUDGET_S - 1.0
    assert reserves.too_late() == "it needs about 2 s, more than the budget has left; raise --budget to try it"


def test_a_compilation_from_the_cache_is_no_shorter_than_a_trial(context):
    context.bench.budget.saw(3.0, cost=1)
    assert "about 2 s" in context.reserves.too_late(cost=0.4)


def test_a_compilation_is_waited_for_unless_it_takes_most_of_the_budget(context):
    reserves, budget = context.reserves, context.bench.budget
    without_s = reserves.stack_s()
    reserves.compile_cost = 1.0
    budget.saw(30.0, cost=1.0)
    assert reserves.compile_s() == 30.0
    assert reserves.stack_s() == without_s + 30.0
    assert reserves.solo_s() == pytest.approx(0.35 * BUDGET_S), "no more than this share, whatever is wanted"
    budget.saw(60.0, cost=1.0)
    assert reserves.compile_s() == 0


def test_a_stack_that_compiles_takes_longer_to_confirm(context):
    before_s = context.reserves.confirmation_s()
    context.bench.budget.saw(10.0, cost=1.0)
    compiled = StackRecord({"compile.scope": "model"}, MEASURED)
    assert context.catalog.cost(compiled.settings) > 0
    context.keep_stack(compiled)
    assert context.reserves.confirmation_s() > before_s
    context.keep_stack(StackRecord({}, MEASURED))
    assert context.reserves.confirmation_s() == before_s


def test_time_is_kept_back_of_the_budget_that_counts_after_the_session(context, clock):
    clock.now = BUDGET_S
    assert not context.reserves.affordable(reserve_s=0.0)
    context.bench.budget = context.bench.budget.renewed()
    assert context.reserves.affordable(reserve_s=0.0)


# --- how far the session is -----------------------------------------------------------------------------------


def test_the_bar_never_runs_backwards_until_it_begins_anew(context, clock, told):
    progress = context.progress
    progress.has_plan, progress.trials_left = True, 1
    clock.now = 20.0
    progress.tell()
    progress.trials_left = 30
    progress.tell()
    progress.begin_anew()
    context.bench.budget = context.bench.budget.renewed()
    progress.tell()
    first, second, third = posted(told, events.ProgressMade)
    assert first.share == second.share > 0
    assert second.left_s > first.left_s
    assert third.share == 0


def test_before_there_is_a_plan_all_of_the_budget_is_left(context, clock, told):
    clock.now = 20.0
    context.progress.enter("baseline")
    stage, progress = told
    assert (stage.stage, progress.left_s) == ("baseline", BUDGET_S - 20.0)


# --- what is kept, and warned of ------------------------------------------------------------------------------


def test_what_was_left_out_has_had_no_trial(context, told):
    context.known_judge = Judge(context.catalog, Mode.TRAIN, MEASURED)
    left_out, tried, to_come = (Candidate("zero_grad", "step.zero_grad", value) for value in VALUES)
    context.skip(left_out, "there was no time")
    context.keep(context.judge.record(tried, tried.settings, MEASURED))
    assert [context.was_measured(candidate) for candidate in (left_out, tried, to_come)] == [False, True, False]
    records = [event.record for event in posted(told, events.TrialMeasured)]
    assert [record.result.reason for record in records] == ["there was no time", ""]


@pytest.mark.parametrize(("floor", "warned"), [(0.1234, True), (0.05, False)])
def test_a_noisy_machine_is_told_with_the_effects_that_are_lost_in_it(context, told, floor, warned):
    context.known_judge = Judge(context.catalog, Mode.TRAIN, MEASURED, earlier_floor=floor)
    warn_of_noise(context)
    assert [said.severity for said in posted(told, events.Said)] == ["warning"] * warned
    assert any("effects below 12 % cannot be told from noise" in said.text for said in told) is warned


# --- what is proposed -----------------------------------------------------------------------------------------


def test_in_the_company_of_workers_their_lives_are_known():
    """``num_workers`` has its workers live on, so that is not proposed beside it; their queue is."""
    facts = gpu_facts(loader=loader_facts(), profile=profile_facts())

    def proposed(facts):
        return {candidate.recipe for candidate in load_catalog().propose(facts).candidates if not candidate.already_on}

    assert not {"prefetch", "persistent_workers"} & proposed(facts)
    assert {"prefetch", "persistent_workers"} & proposed(facts_under(facts, {"data.num_workers": 4})) == {"prefetch"}


@pytest.mark.parametrize(("objective", "alone"), [(Objective.THROUGHPUT, True), (Objective.MEMORY, False)])
def test_what_only_saves_memory_is_known_unless_that_is_wanted(context, objective, alone):
    planning = Planning(replace(context, request=replace(context.request, objective=objective)))
    blocks = Candidate("checkpointing", "memory.activation_checkpointing", "blocks")
    fused = Candidate("fused_optimizer", "optimizer.implementation", "fused")  # it saves time as well
    assert [planning.is_for_memory_only(candidate) for candidate in (blocks, fused)] == [alone, False]


# --- what happens beside a compilation ----------------------------------------------------------------------------

ALLOCATORS = [Candidate("allocator", "memory.allocator", value) for value in ("expandable_segments", "cuda_async")]
COMPILE = [Candidate("compile", "compile.mode", "default")]


@pytest.fixture
def measured(context):
    """A session on a GPU whose baseline is measured: a trial takes 2 s, to import 6 s, to compile 20 s more."""
    context.known_facts = gpu_facts()
    context.known_judge = Judge(context.catalog, Mode.TRAIN, MEASURED)
    context.bench.budget.interpreter_s = 6.0
    context.bench.budget.saw(22.0, cost=1.0)
    yield context
    context.bench.runner.interpreters.close()


def waiting(context):
    return [c.value for c in ALLOCATORS if context.bench.has_interpreter(c.settings)]


def test_interpreters_start_beside_a_compilation(measured):
    Runner.prepare()
    start_interpreters(measured, [*COMPILE, *ALLOCATORS], COMPILE)
    assert waiting(measured) == ["expandable_segments", "cuda_async"]


def test_no_interpreter_starts_where_nothing_is_compiled(measured):
    start_interpreters(measured, ALLOCATORS, [])
    assert waiting(measured) == []


def test_no_interpreter_starts_that_the_budget_will_not_come_to(measured, clock):
    clock.now = BUDGET_S - 22.0
    start_interpreters(measured, ALLOCATORS, COMPILE)
    assert waiting(measured) == []


def test_no_interpreter_starts_for_what_was_rejected(measured):
    measured.decisions.take("allocator", Decision.REJECTED)
    start_interpreters(measured, ALLOCATORS, COMPILE)
    assert waiting(measured) == []


def test_no_interpreter_starts_where_trials_need_the_cores(measured):
    facts = measured.facts
    few = replace(facts.hardware.host, usable_cores=2)
    measured.known_facts = replace(facts, hardware=replace(facts.hardware, host=few))
    start_interpreters(measured, ALLOCATORS, COMPILE)
    measured.known_facts = cpu_facts()
    start_interpreters(measured, ALLOCATORS, COMPILE)
    assert waiting(measured) == []


def test_an_interpreter_that_waits_takes_no_more_time_of_the_budget(measured, clock):
    Runner.prepare()
    baseline = BaselineMeasurements(measured, after_control=lambda: None)
    solo = SoloTrials(measured, Planning(measured), baseline, before_each=lambda: None)
    clock.now = BUDGET_S - 5.0
    assert "about 8 s" in solo._why_not(ALLOCATORS[0], {}, 0.0)
    measured.bench.start_interpreter(ALLOCATORS[0].settings)
    assert solo._why_not(ALLOCATORS[0], {}, 0.0) == ""


def test_settings_are_compiled_beside_others_where_nothing_is_timed_for_them(measured):
    def may(**settings):
        return may_compile_beside(
            measured, Settings({key.replace("__", "."): value for key, value in settings.items()})
        )

    assert may(compile__mode="default", precision__autocast="bfloat16")
    assert not may(precision__autocast="bfloat16"), "nothing is compiled"
    assert not may(compile__mode="max-autotune"), "kernels are timed"
    assert not may(compile__mode="default", backends__cudnn_benchmark=True)
    assert not may(compile__mode="default", memory__allocator="cuda_async"), "a fresh interpreter"
    facts = measured.facts
    few = replace(facts.hardware.host, usable_cores=4)
    measured.known_facts = replace(facts, hardware=replace(facts.hardware, host=few))
    assert not may(compile__mode="default")
    measured.known_facts = replace(facts, workload=replace(facts.workload, current={"backends.cudnn_benchmark": True}))
    assert not may(compile__mode="default")
    measured.known_facts = facts
    measured.bench.builds_anew = "building the model starts threads"
    assert not may(compile__mode="default")
    measured.bench.builds_anew = ""
    assert may(compile__mode="default")
    half = replace(MEASURED, peak_reserved_bytes=facts.workload.device_memory_bytes // 2)
    measured.known_judge = Judge(measured.catalog, Mode.TRAIN, half)
    assert not may(compile__mode="default")


def blocks_and_a_loss():
    """Facts of a model of equal blocks, with a loss worth compiling."""
    profile = replace(profile_facts(), phases={**profile_facts().phases, "loss": 20.0})
    return gpu_facts(repeated_blocks=(("Block", 12),), families={"linear": 24}, profile=profile)


def test_what_is_compiled_next_is_compiled_ahead(measured):
    measured.known_facts = blocks_and_a_loss()
    trials = StackTrials(measured, Planning(measured))
    now, regional, slow = (
        Candidate("compile_scope", "compile.scope", "with_loss"),
        Candidate("compile_scope", "compile.scope", "regional"),
        Candidate("compile", "compile.mode", "max-autotune-no-cudagraphs"),
    )
    assert trials._ahead(now, []) is None
    assert trials._ahead(now, [regional, slow]) == Settings({"compile.scope": "regional"})
    assert trials._ahead(now, [slow, regional]) is None, "what comes next cannot be compiled beside it"
    measured.decisions.take("compile_scope", Decision.REJECTED)
    assert trials._ahead(now, [regional]) is None


def test_nothing_is_compiled_ahead_that_the_budget_has_no_time_for(measured, clock):
    measured.known_facts = blocks_and_a_loss()
    trials = StackTrials(measured, Planning(measured))
    scopes = [Candidate("compile_scope", "compile.scope", scope) for scope in ("with_loss", "regional")]
    clock.now = BUDGET_S - 55.0
    assert trials._ahead(scopes[0], scopes[1:]) is not None
    clock.now = BUDGET_S - 40.0
    assert trials._ahead(scopes[0], scopes[1:]) is None
