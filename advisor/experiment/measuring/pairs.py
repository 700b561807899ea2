"""Fresh processes that time a target's own loop without exported settings and with them: A B B A, in pairs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from advisor.records import Block, Outcome, TrialResult, TrialSpec

if TYPE_CHECKING:
    from advisor.runner.trials import Runner  # the app imports this module before it starts a trial

# Time to have left for another pair, as a multiple of the longest so far. Unitless.
_LIKE_BEFORE = 1.2
# Kept of the time for ending a process that overruns it, and the least that a process gets. Seconds.
_ENDING_S, _LEAST_S = 0.5, 1.0

# The results of the plain loop (False) and of the tuned one (True).
Pair = dict[bool, TrialResult]


def pairs_in_turn(
    runner: Runner,
    specs: Mapping[bool, TrialSpec],
    until: float,
    most: int,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[list[Pair], tuple[bool, TrialResult] | None]:
    """The pairs that could be measured ``until`` then, and the process that failed, as which of both and its result.

    A further pair for which there is too little time after all is left out, and no failure.
    """
    pairs: list[Pair] = []
    longest_s = 0.0
    while len(pairs) < most:
        begun = time.monotonic()
        if pairs and until - begun < _LIKE_BEFORE * longest_s:
            break
        pair: Pair = {}
        for tuned in (False, True) if len(pairs) % 2 == 0 else (True, False):
            say(f"pair {len(pairs) + 1}: {specs[tuned].trial_id}")
            left_s = until - time.monotonic() - _ENDING_S
            result = runner.run(replace(specs[tuned], timeout_s=max(_LEAST_S, left_s)), lambda message: None)
            if not result.measured:
                return pairs, None if pairs and result.outcome is Outcome.TIMED_OUT else (tuned, result)
            pair[tuned] = result
        pairs.append(pair)
        longest_s = max(longest_s, time.monotonic() - begun)
    return pairs, None


def middle_block(pairs: Sequence[Pair], *, tuned: bool) -> Block:
    """The block of median speed of the plain or the tuned loop: one block, so that its figures agree."""
    blocks = [block for pair in pairs for block in pair[tuned].blocks]
    return sorted(blocks, key=lambda block: block.samples_per_s)[len(blocks) // 2]
