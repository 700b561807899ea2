"""Whether a session that is taken up would measure the same: its options, its config and its source compared."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from advisor.errors import UsageError
from advisor.experiment.past.journal import PastSession, fingerprint_of
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.files.paths import exists
from advisor.records import Facts
from advisor.source.prints import changed_sources

# The options that make the workload, as the command line has them, by the field of the target that holds each.
_OPTIONS = {"mode": "--mode", "device": "--device", "batch_size": "--batch-size", "input_shape": "--input"}


def taken_up_request(request: Request, past: PastSession, *, config_given: bool = False) -> Request:
    """The request for resuming a session. The config is read again, unless this command line named one.

    Raises UsageError where the workload has changed since it was measured, or a file of it is gone.
    """
    if not config_given and past.config_fingerprint and (path := request.config_path) is not None:
        from advisor.files.config_file import read_config  # late: YAML takes long to load

        request = replace(request, target=replace(request.target, config=read_config(path)))
    state = SessionState.of(past.events)
    if state.facts is None or state.baseline is None:
        return request  # nothing was measured that could be mixed with something else
    if changed := "; ".join(_changes(request, past, state.facts)):
        raise UsageError(
            f"the session {past.session_id} measured something else: {changed}.",
            "Undo that, or leave --resume out to measure anew.",
        )
    return request


def check_same_machine(before: Facts, now: Facts) -> None:
    """Raise UsageError when the baseline that was just measured is not comparable with the one of a past session."""
    pairs = {
        "device": (before.workload.device_name, now.workload.device_name),
        "PyTorch": (before.versions.get("torch"), now.versions.get("torch")),
        "mode": (before.workload.mode.value, now.workload.mode.value),
        "batch size": (before.workload.batch_size, now.workload.batch_size),
        "number of parameters": (before.workload.parameters, now.workload.parameters),
    }
    changes = [f"the {name} is {new}, and was {old}" for name, (old, new) in pairs.items() if old != new]
    if changes:
        raise UsageError(
            f"the session measured something else: {'; '.join(changes)}.", "Measure anew: leave --resume out."
        )


def _changes(request: Request, past: PastSession, facts: Facts) -> Iterator[str]:
    before, now = past.request.target, request.target
    for name, option in _OPTIONS.items():
        old, new = (
            "x".join(map(str, value)) if isinstance(value, tuple) else value or "not given"
            for value in (getattr(before, name), getattr(now, name))
        )
        if old != new:
            yield f"{option} is {new}, and was {old}"
    if (past.request.evaluate, past.request.eval_steps) != (request.evaluate, request.eval_steps):
        yield "--eval or --steps is another"
    if facts.sources and before.directory != now.directory:
        yield f"the folder is {now.directory}, and was {before.directory}"
    if past.config_fingerprint not in (fingerprint_of(now.config), "unknown"):  # of an older session
        yield "the config has changed"
    for path in changed_sources(facts.sources):
        shown = path.removeprefix(f"{Path(now.directory).resolve()}/")
        yield f"{shown} {'has changed' if exists(path) else 'is gone'}"
