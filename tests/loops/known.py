"""What is refused or differs on purpose, and differences that are known and not mended yet.

Each entry names a loop and a case as its example, which has to show it: what is mended is removed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Expected:
    """Something expected: its reason, an example, and regular expressions for the loop, the case and what is said.

    ``device`` is where the example shows it.
    """

    reason: str
    example: tuple[str, str]
    loop: str = ""
    case: str = ""
    what: str = ""
    device: str = "cpu"

    def matches(self, loop: str, case: str, what: str) -> bool:
        """Whether this is what was seen."""
        patterns = ((self.loop, loop), (self.case, case), (self.what, what))
        return all(re.search(pattern, text) for pattern, text in patterns)


BY_DESIGN: tuple[Expected, ...] = (
    Expected("it asks for the loss several times a step", ("lbfgs", "nothing"), loop="lbfgs$", what="closure"),
    Expected(
        "another optimizer has no fused form",
        ("own_optimizer", "optimizer.implementation: fused"),
        loop="own_optimizer",
        what="no (fused|foreach) implementation",
    ),
    Expected(
        "Adafactor has no betas that OneCycleLR could move",
        ("one_cycle_adam", "optimizer.state: adafactor"),
        loop="one_cycle_adam",
        what="betas",
    ),
    Expected(
        "biases that a norm takes off are saved as zeros, without a momentum",
        ("plain", "model.conv_bias_before_norm: False"),
        loop="plain|resume_sgd",
        case="conv_bias|stack|captured|compiled",
        what="instead of 10",
    ),
    Expected(
        "each worker ends its share of a stream with a smaller batch",
        ("streaming", "data.num_workers: 2"),
        loop="streaming$",
        case="num_workers: 2$",
        what="notes instead of|differ by",
    ),
    Expected(
        "a graph holds one shape and no hooks: other steps run without it, which is told",
        ("changing_shapes", "step.cuda_graph: True"),
        what=r"ran without a CUDA graph\. Last reason: (the structure, the shapes|an? \S+ has the hook)",
        device="cuda",
    ),
    Expected(
        "workers start with each epoch where Accelerate builds the loader anew",
        ("accelerate", "data.num_workers: 2"),
        loop="accelerate$",
        case="data",
        what="Accelerate builds the loader anew",
    ),
)
KNOWN: tuple[Expected, ...] = ()


def explanation(loop: str, case: str, what: str) -> Expected | None:
    """Why this is expected, if it is."""
    return next((entry for entry in (*BY_DESIGN, *KNOWN) if entry.matches(loop, case, what)), None)
