"""The moves of the search over several GPUs: strategies, then options of the best, then the whole batch on each.

As ``moves.py`` for one GPU: functions of what is known.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from advisor.experiment.policy import POLICY
from advisor.experiment.scaling.results import ONE, Scaling, Setup
from advisor.recipe import NOT_COMPILED
from advisor.recipe.parallel_recipe import STRATEGY
from advisor.recipe.settings import Settings
from advisor.records import Candidate
from advisor.records.parallel import UNUSED_PARAMETERS

# Runs of settings that seem better than the stack, until they are or are not. A count.
_MOST_RUNS = 3
_GRAPH = "step.cuda_graph"
_UNUSED = "parallel.find_unused_parameters"


class Move(NamedTuple):
    """One thing to measure next, once or ``in_turn`` with one GPU, and the gain expected of it."""

    gain: float
    setup: Setup
    in_turn: bool = False

    @property
    def trials(self) -> tuple[Setup, ...]:
        """The trials that it takes."""
        return (self.setup, ONE, ONE, self.setup) if self.in_turn else (self.setup,)


def moves(known: Scaling) -> list[Move]:
    """All that could be measured next, by expected gain (as a logarithm) per trial; empty if one GPU failed."""
    if not known.measured(ONE):
        return []
    kinds = (_strategies, _options, _again, _of_the_leading)
    found = [move for kind in kinds for move in kind(known)]
    return sorted(found, key=lambda move: math.log(move.gain) / len(move.trials), reverse=True)


def leading(known: Scaling) -> Setup | None:
    """The fastest usable settings over several GPUs, even if one GPU is as fast; None before any has run."""
    if known.stack:
        return Setup(known.stack)
    compared = {one: known.compare(one) for one in known.runs if one != ONE and not one.weak}
    rates = {one: ratio.speedup for one, ratio in compared.items() if ratio and not known.why_unusable(one)}
    return max(rates, key=lambda one: rates[one], default=None)


def _strategies(known: Scaling) -> Iterator[Move]:
    """Moves that measure each strategy. One that failed is tried again in a changed form."""
    for candidate in known.candidates:
        if candidate.key != STRATEGY or known.consent.rejects(candidate.recipe):
            continue
        setup = Setup(_fitting(known, Settings(candidate.settings)))
        while setup in known.runs and not known.measured(setup) and (other := _mended(known, setup)):
            setup = other
        if setup not in known.runs:
            yield Move(_expected(known, candidate, Settings()), setup)


def _mended(known: Scaling, setup: Setup) -> Setup | None:
    """A failed strategy, changed according to the reason: find unused parameters, no graph, then no compiling."""
    if UNUSED_PARAMETERS in known.runs[setup][-1].reason and _UNUSED not in setup.settings:
        return Setup(_fitting(known, setup.settings.with_value(_UNUSED, True)))
    if _is_captured(known, setup):
        return Setup(setup.settings.with_value(_GRAPH, False))
    plain = _not_compiled(known, setup)
    return plain if plain != setup else None


def _is_captured(known: Scaling, setup: Setup) -> bool:
    """Whether the step is one CUDA graph, the exchange of gradients in it."""
    return bool(known.carried.merged(setup.settings).get(_GRAPH))


def _fitting(known: Scaling, settings: Settings) -> Settings:
    """A strategy's settings. Settings of the carried stack that do not work with it are switched off."""
    for key in known.carried:
        reason = known.catalog.conflict(known.carried.merged(settings))
        if not reason:
            break
        off = settings.with_value(key, known.catalog.by_key(key).default)
        if known.catalog.conflict(known.carried.merged(off)) != reason:
            settings = off
    return settings


def _not_compiled(known: Scaling, setup: Setup) -> Setup | None:
    """The same without compiling; None where nothing is compiled."""
    off = {key: value for key, value in NOT_COMPILED.items() if known.carried.get(key, value) != value}
    return Setup(setup.settings.merged(off), setup.weak) if off else None


def _options(known: Scaling) -> Iterator[Move]:
    """Moves that add one option to the leading settings; opt-in ones are measured for their price."""
    lead = leading(known)
    if lead is None:
        return
    for candidate in known.candidates:
        if candidate.key == STRATEGY or candidate.key in lead.settings or known.consent.rejects(candidate.recipe):
            continue
        settings = lead.settings.merged(candidate.settings)
        # Measured under this strategy, on whatever else the stack held then.
        alike = (one.settings for one in known.runs if one.strategy == lead.strategy)
        tried = any(other.get(candidate.key) == candidate.value for other in alike)
        if tried or known.catalog.conflict(known.carried.merged(settings)):
            continue
        yield Move(_expected(known, candidate, lead.settings), Setup(settings))


def _expected(known: Scaling, candidate: Candidate, beside: Settings) -> float:
    """The expected gain of a candidate; at least the value of one more figure in the report."""
    if known.facts is None:
        return POLICY.information
    joined = known.carried.merged(beside)
    gain = known.catalog.expected_gain(candidate.recipe, known.facts, candidate.value, joined)
    return max(gain, POLICY.information)


def _again(known: Scaling) -> Iterator[Move]:
    """Run settings again that seem better than the stack while the interval leaves it open."""
    for setup in known.runs:
        if setup in (ONE, Setup(known.stack)) or setup.weak or known.why_unusable(setup):
            continue
        comparison = known.compare(setup, Setup(known.stack))
        if comparison is None or comparison.ci_low > 1 or len(known.runs[setup]) >= _MOST_RUNS:
            continue
        if comparison.speedup > POLICY.least_gain:
            yield Move(min(comparison.speedup, POLICY.small_gain), setup)


def _of_the_leading(known: Scaling) -> Iterator[Move]:
    """The leading settings without compiling, with the whole batch on each GPU, and in turn with one GPU.

    Compiling may hide the gradients' way worse than it computes faster. The whole batch on each GPU is how many people
    use several; it is not comparable with the same global batch. The turns are for the figure that is reported.
    """
    lead = leading(known)
    if lead is None:
        return
    plain = None if _is_captured(known, lead) else _not_compiled(known, lead)
    if plain and plain not in known.runs:
        yield Move(POLICY.not_compiled, plain)
    if not any(one.weak and one.strategy == lead.strategy for one in known.runs):
        yield Move(POLICY.proof, Setup(lead.settings, weak=True))
    if known.stack and not known.confirmed:
        yield Move(POLICY.proof, Setup(known.stack), in_turn=True)
