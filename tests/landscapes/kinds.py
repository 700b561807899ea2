"""What a trial is for, read from its spec: the only place here that knows how a spec says so."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from advisor import records
from advisor.records import TrialSpec


@dataclass(frozen=True, slots=True)
class Role:
    """What a trial does beside measuring its settings."""

    inspects: bool = False
    profiles: bool = False
    reference: bool = False
    ahead: bool = False
    pauses: bool = False
    interactive: bool = False


_ROLES = {
    "BASELINE": Role(inspects=True),
    "PROFILE": Role(profiles=True),
    "CANDIDATE": Role(),
    "REFERENCE": Role(reference=True),
    "AHEAD": Role(ahead=True),
    "PAUSING": Role(pauses=True),
    "TURNS": Role(interactive=True),
}


def role_of(spec: TrialSpec) -> Role:
    """The role that a spec gives its trial."""
    kind: Any = getattr(spec, "kind", None)
    if kind is not None:
        return _ROLES[kind.name]
    old: Any = spec
    return Role(old.inspect, old.profile, old.reference, old.compile_only, old.pauses, old.interactive)


def with_role(spec: TrialSpec, *names: str) -> TrialSpec:
    """The spec with a role, named as the kinds of trials are; several names where one trial can do both."""
    if hasattr(spec, "kind"):
        kinds: Any = records
        return replace(spec, **{"kind": kinds.TrialKind[names[0]]})
    flags = {
        "inspect": "BASELINE" in names,
        "profile": "PROFILE" in names,
        "reference": "REFERENCE" in names,
        "compile_only": "AHEAD" in names,
        "pauses": "PAUSING" in names,
        "interactive": "TURNS" in names,
    }
    return replace(spec, **flags)
