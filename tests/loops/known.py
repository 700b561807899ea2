"""What is refused on purpose, and differences that are known and not mended yet.

Each entry names a loop and a case as its example, which has to show it: what is mended is removed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Expected:
    """Something expected: its reason, an example, and regular expressions for the loop, the case and what is said."""

    reason: str
    example: tuple[str, str]
    loop: str = ""
    case: str = ""
    what: str = ""

    def matches(self, loop: str, case: str, what: str) -> bool:
        """Whether this is what was seen."""
        patterns = ((self.loop, loop), (self.case, case), (self.what, what))
        return all(re.search(pattern, text) for pattern, text in patterns)


REFUSED: tuple[Expected, ...] = (
    Expected("it asks for the loss several times a step", ("lbfgs", "nothing"), loop="lbfgs", what="closure"),
    Expected(
        "another optimizer has no fused form",
        ("own_optimizer", "optimizer.implementation: fused"),
        loop="own_optimizer",
        what="no fused implementation",
    ),
    Expected(
        "a trace would lose what hooks and layers of one's own do",
        ("hooked_features", "exact settings"),
        loop="own_layers|hooked_features",
        what="hooks",
    ),
)
KNOWN: tuple[Expected, ...] = (
    Expected(
        "an optimizer's flags are written to its checkpoint",
        ("plain", "optimizer.implementation: fused"),
        what="(foreach|fused) of group",
    ),
    Expected("infer() leaves the model in eval mode", ("infer_made_once", "nothing"), loop="infer_made_once"),
    Expected(
        "a convolution's bias is missing in the checkpoint",
        ("plain", "model.conv_bias_before_norm: False"),
        loop="plain|resume_sgd",
        case="conv_bias|float32 stack|bfloat16 stack",
    ),
    Expected(
        "fused kernels read a loaded state in the wrong order",
        ("resume_adamw", "float32 stack"),
        loop="resume_adamw",
        case="stack",
    ),
    Expected(
        "parameters that join later are not cleared by hand",
        ("group_added_later", "step.zero_grad: manual"),
        loop="group_added_later",
    ),
    Expected("LBFGS fails without a sentence", ("lbfgs", "nothing"), loop="lbfgs", what="missing 1 required"),
    Expected(
        "workers that persist shuffle differently from the second epoch on",
        ("dropout", "data.num_workers: 2"),
        case="^data",
    ),
    Expected(
        "a scheduler stays with the old optimizer",
        ("one_cycle_sgd", "optimizer.implementation: fused"),
        what="rates|last rates|order|scheduler",
    ),
    Expected("prepare() takes one of each kind", ("gan", "nothing"), what=r"prepare\(\) takes one"),
)


def explanation(outcome: str, loop: str, case: str, what: str) -> Expected | None:
    """Why this outcome is expected, if it is."""
    entries = (*REFUSED, *KNOWN) if outcome in ("refused", "left out") else KNOWN
    return next((entry for entry in entries if entry.matches(loop, case, what)), None)
