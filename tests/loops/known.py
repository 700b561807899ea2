"""What is refused on purpose, and differences that are known and not mended yet.

Each entry of ``KNOWN`` has to match something that the quick tests see: what is mended is removed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Expected:
    """Something expected, with its reason: regular expressions for the loop, the case and what is said."""

    reason: str
    loop: str = ""
    case: str = ""
    what: str = ""

    def matches(self, loop: str, case: str, what: str) -> bool:
        """Whether this is what was seen."""
        patterns = ((self.loop, loop), (self.case, case), (self.what, what))
        return all(re.search(pattern, text) for pattern, text in patterns)


REFUSED: tuple[Expected, ...] = ()
KNOWN: tuple[Expected, ...] = (
    Expected("an optimizer's flags are written to its checkpoint", what="(foreach|fused) of group"),
    Expected("infer() leaves the model in eval mode", loop="infer_made_once"),
    Expected("prepare() takes one of each kind", what=r"prepare\(\) takes one"),
)


def explanation(outcome: str, loop: str, case: str, what: str) -> Expected | None:
    """Why this outcome is expected, if it is."""
    entries = (*REFUSED, *KNOWN) if outcome == "refused" else KNOWN
    return next((entry for entry in entries if entry.matches(loop, case, what)), None)
