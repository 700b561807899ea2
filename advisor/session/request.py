"""Request: what the user asked a session to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from advisor.records import Numerics, Objective, TargetSpec

DEFAULT_BUDGET_S = 300.0


@dataclass(frozen=True, slots=True)
class Request:
    """The options of one session.

    ``budget_s``: wall seconds for the whole session. ``allow``: the worst numerics class that may enter the stack
    without the person's consent. ``memory_limit_bytes``: what peak reserved memory may not exceed.
    ``scripts``: files that are read for habits, beside the target's own.
    """

    target: TargetSpec
    budget_s: float = DEFAULT_BUDGET_S
    objective: Objective = Objective.THROUGHPUT
    allow: Numerics = Numerics.CLOSE
    memory_limit_bytes: int | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    recipe_folders: tuple[str, ...] = ()
    gpus: int = 1
    seed: int = 0
    config_path: str | None = None
    key_map: dict[str, str] = field(default_factory=dict)
    scripts: tuple[str, ...] = ()
