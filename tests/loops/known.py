"""Differences that are known and not mended yet. Each entry has to match something: what is mended is removed."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """A known difference: its cause in a sentence, and regular expressions for the loop, the case and what is said."""

    cause: str
    loop: str = ""
    case: str = ""
    what: str = ""

    def matches(self, loop: str, case: str, what: str) -> bool:
        """Whether this is the cause of what was seen."""
        return all(
            re.search(pattern, text) for pattern, text in ((self.loop, loop), (self.case, case), (self.what, what))
        )


KNOWN: tuple[Known, ...] = (
    Known("an optimizer's flags are written to its checkpoint", what="(foreach|fused) of group"),
    Known("infer() leaves the model in eval mode", loop="infer_made_once"),
    Known("prepare() takes one of each kind", what=r"prepare\(\) takes one"),
)


def cause_of(loop: str, case: str, what: str) -> Known | None:
    """The known cause of a difference, if there is one."""
    return next((known for known in KNOWN if known.matches(loop, case, what)), None)
