"""The loops on the CPU: each plain, and under stacks of the settings that apply; a few under every setting."""

from __future__ import annotations

import pytest
import torch

from loops.known import Known, cause_of
from loops.register import all_loops
from loops.table import Asked, rows

LOOPS = all_loops()
CPU = torch.device("cpu")
QUICK = ("exact settings", "float32 stack", "precision.autocast: float16")
# Run under every setting that needs no compiler: one of each kind.
IN_FULL = ("plain", "nanogpt_step", "resume_adamw", "prepared_first")
COMPILED = {
    "nanogpt_step": "compile.scope: regional",
    "ema_by_hand": "compiled stack",
    "group_added_later": "compiled with loss",
    "collected": "compile.mode: default",
}
_MATCHED: set[Known] = set()


class _Only(Asked):
    """Exactly these cases."""


def unexplained(name: str, wanted) -> list[str]:
    """What a loop did otherwise than its plain form, under the cases wanted, and nobody knows of."""
    found = []
    for row in rows([LOOPS[name]], CPU, wanted):
        if row.outcome == "skipped":
            pytest.skip(row.details[0])
        if row.outcome == "same":
            continue
        for text in row.details:
            known = cause_of(name, row.case, text)
            _MATCHED.update([known] if known else [])
            if known is None and not (row.outcome == "refused" and text.endswith(REFUSED.get(name, "\0"))):
                found.append(f"{row.case} ({row.direction}): {text}")
    return found
