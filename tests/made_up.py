"""A made-up workload for tests of the search: a function says how fast a combination is, a price list what it costs."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

from facts import gpu_facts

from advisor.experiment.consent import Consent
from advisor.experiment.control import Decision
from advisor.experiment.known import Evidence, Kind, Known, Move
from advisor.experiment.measuring.bench import Bench
from advisor.experiment.measuring.budget import Budget
from advisor.experiment.moves import moves
from advisor.experiment.past.journal import Journal
from advisor.experiment.plan import Plan
from advisor.experiment.reporting import Reporter
from advisor.experiment.request import Request
from advisor.experiment.search import search
from advisor.judging.judge import BASELINE, CONTROL_SETTINGS, Judge
from advisor.judging.objective import Goal
from advisor.judging.runs import Turns
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.records import Block, Candidate, Cause, Facts, Numerics, Outcome, TargetSpec, TrialResult, Value

CATALOG = load_catalog()
MIB = 2**20
BF16 = Candidate("autocast", "precision.autocast", "bfloat16")
LAST = Candidate("channels_last", "model.memory_format", "channels_last")
FUSED = Candidate("fused_optimizer", "optimizer.implementation", "fused")
GRAPH = Candidate("step_graph", "step.cuda_graph", True)
TF32 = Candidate("tf32", "precision.float32_matmul", "high")
WITH_LOSS = Candidate("compile_scope", "compile.scope", "with_loss")
COMPILED = Candidate("compile", "compile.mode", "default")
CUDNN = Candidate("cudnn_benchmark", "backends.cudnn_benchmark", True)
WORKERS = Candidate("num_workers", "data.num_workers", 16)
BLOCKS = Candidate("checkpointing", "memory.activation_checkpointing", "blocks")

Speed = Callable[[Settings], float | str | TrialResult]


def result_at(speedup: float, *, memory: float = 1.0, energy: float = 1.0, **changes: object) -> TrialResult:
    """A result of a step that is this many times as fast as one of 100 ms, with these shares of memory and energy."""
    blocks = tuple(Block(10, 320, wobble / speedup) for wobble in (0.999, 1.0, 1.001, 1.0, 0.9995, 1.0005))
    result = TrialResult(
        Outcome.MEASURED,
        batch_size=32,
        blocks=blocks,
        losses=(1.0, 0.9),
        peak_reserved_bytes=round(1000 * MIB * memory),
        energy_j_per_sample=energy,
        wall_s=2.0,
    )
    return replace(result, **changes)


def failed(reason: str, outcome: Outcome = Outcome.FAILED, *causes: Cause) -> TrialResult:
    """A result of a trial that failed."""
    return TrialResult(outcome, reason, causes=causes)


def product(**factors: float) -> Speed:
    """A speed-up that is the product of each setting's own, by the ids of their recipes."""
    by_key = {CATALOG[recipe].key: factor for recipe, factor in factors.items()}

    def speedup(settings: Settings) -> float:
        total = 1.0
        for key in settings:
            total *= by_key.get(key, 1.0)
        return total

    return speedup


@dataclass
class MadeUpTrials:
    """Answers as trials would; ``asked`` keeps the moves. An ordinary trial costs 2 s, one that compiles 30, then 8.

    ``most`` moves are made, for tests of the first ones.
    """

    speed: Speed
    budget_s: float = 1000.0
    spent_s: float = 0.0
    asked: list[Move] = field(default_factory=list)
    told: list[Known] = field(default_factory=list)
    follow: Callable[[Known], Known] = lambda known: known
    compiled: set[Settings] = field(default_factory=set)
    most: float = math.inf

    def cost_s(self, move: Move, known: Known) -> float:
        code = CATALOG.compiled_code(move.settings)
        once_s = (8.0 if code in self.compiled else 30.0) if code else 2.0
        return once_s + 2.0 if move.kind is Kind.TURNS else once_s

    def comes_first(self, move):
        return move.has_priority

    def affords(self, move: Move, known: Known) -> bool:
        if len(self.asked) >= self.most:
            return False
        return self.spent_s + self.cost_s(move, known) <= self.budget_s

    def measure(self, move: Move, known: Known) -> Evidence:
        self.spent_s += self.cost_s(move, known)
        self.asked.append(move)
        self.compiled.add(CATALOG.compiled_code(move.settings))
        match move.kind:
            case Kind.CONTROL:
                return Evidence(runs=((CONTROL_SETTINGS, result_at(1.0)),))
            case Kind.PROFILE:
                return Evidence(runs=((BASELINE, result_at(1.0)),), facts=known.plan.facts)
            case Kind.REFERENCE:
                return Evidence()
            case Kind.TURNS:
                new, old = self.run(move.settings), result_at(1.0)
                turns = Turns((new,), (old,)) if new.measured else None
                return Evidence(runs=((move.settings, new), (BASELINE, old)), turns=turns)
        return Evidence(runs=((move.settings, self.run(move.settings)),))

    def run(self, settings: Settings) -> TrialResult:
        speed = self.speed(settings)
        if isinstance(speed, TrialResult):
            return speed
        return failed(speed) if isinstance(speed, str) else result_at(speed)

    def publish(self, known: Known) -> Known:
        self.told.append(known)
        return self.follow(known)

    def settings_of(self, kind: Kind) -> list[Settings]:
        """The settings of the moves of one kind, in order."""
        return [move.settings for move in self.asked if move.kind is kind]


def known_of(
    facts: Facts | None = None,
    *,
    goal: Goal | None = None,
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    allow: Numerics = Numerics.CLOSE,
    baseline: TrialResult | None = None,
    hints: dict[str, object] | None = None,
) -> Known:
    """The knowledge after the baseline of a small convolutional network on an H200."""
    facts, goal = facts or gpu_facts(), goal or Goal()
    request = Request(
        TargetSpec("made_up", "."),
        allow=allow,
        only=only,
        skip=skip,
        objective=goal.objective,
        memory_limit_bytes=goal.memory_limit_bytes,
        latency_limit_ms=goal.latency_limit_ms,
    )
    consent = Consent(CATALOG, facts.workload.mode, allow)
    judge = Judge(CATALOG, facts.workload.mode, baseline or result_at(1.0), goal=goal)
    return Known.begin(Plan(CATALOG, request, facts, consent, hints=hints or {}).with_facts(facts), judge)


def known_with(*runs: tuple[Settings, TrialResult], stack: Settings = BASELINE, **options: object) -> Known:
    """The knowledge after these runs, as pairs of settings and results; the search works on ``stack``."""
    known = known_of(**options)
    for settings, result in runs:
        known = replace(known, judge=known.judge.with_run(Settings(settings), result))
    return replace(known, stack=Settings(stack))


def decided(known: Known, values: dict[str, Value] | None = None, **decisions: str) -> Known:
    """The same knowledge with these decisions, some of which concern one value."""
    by_recipe = {recipe: Decision(decision) for recipe, decision in decisions.items()}
    return known.with_consent(replace(known.plan.consent, decisions=by_recipe, values=values or {}))


def found_by(
    speed: Speed, facts: Facts | None = None, *, budget_s: float = 1000.0, most: float = math.inf, **options: object
) -> tuple[Known, MadeUpTrials]:
    """The end of a search on a made-up workload, and the trials that it used."""
    trials = MadeUpTrials(speed, budget_s, most=most)
    return search(known_of(facts, **options), trials, moves), trials


def together(*candidates):
    """The settings of several candidates."""
    settings = Settings()
    for candidate in candidates:
        settings = settings.merged(candidate.settings)
    return settings


PLAIN = together(BF16, LAST, FUSED, GRAPH)
WHOLE = together(BF16, LAST, FUSED, GRAPH, WITH_LOSS)
UNCAPTURED = PLAIN.without(GRAPH.key)
EVERYTHING_HELPS = product(autocast=1.5, channels_last=1.2, fused_optimizer=1.05, step_graph=1.3, compile_scope=1.4)


def reporter_to(post, past=None):
    """A session's reporter that keeps no journal."""
    return Reporter(post, SimpleNamespace(session_id="none", record=lambda event: ""), past)


def bench_of(runner, folder, clock, *, total_s=100.0, post=lambda event: None):
    """A bench with a runner, and a budget of so many seconds by a clock."""
    request = Request(TargetSpec("target.py", str(folder)), budget_s=total_s)
    return Bench(request, runner, Budget(total_s, clock), Journal.create(request), emit=post)
