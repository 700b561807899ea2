"""Whether a session that is taken up would measure the same: its options, its config and its source compared."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from advisor.errors import UsageError
from advisor.experiment.past.journal import PastSession
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_first
from advisor.files.paths import exists
from advisor.records import Facts
from advisor.records.secrets import without_secrets
from advisor.source.prints import changed_sources

# The options that make the workload, as the command line has them, by the field of the target that holds each.
_OPTIONS = {"mode": "--mode", "device": "--device", "batch_size": "--batch-size", "input_shape": "--input"}
_MOST_SHOWN = 3


def taken_up_request(request: Request, past: PastSession, *, config_given: bool = False) -> tuple[Request, str]:
    """The request for resuming a session, and what of the workload changed since it was measured; empty for nothing.

    The config is read from its file again, since the record has no secrets, unless this command line named one
    (``config_given``). Raises UsageError where that file is needed and gone.
    """
    if not config_given and request.config_path is not None and past.request.target.config is not None:
        request = _with_its_config(request, past, request.config_path)
    state = SessionState.of(past.events)
    if state.facts is None or state.baseline is None:
        return request, ""  # nothing was measured that could be mixed with something else
    return request, "; ".join(_changes(request, past, state.facts))


def _with_its_config(request: Request, past: PastSession, path: str) -> Request:
    if exists(path):
        from advisor.files.config_file import read_config  # late: YAML takes long to load

        return replace(request, target=replace(request.target, config=read_config(path)))
    if past.withheld:
        secrets = format_first(past.withheld, _MOST_SHOWN)
        raise UsageError(
            f"the session's config {path} is gone, and its secrets ({secrets}) are not kept.",
            "Put the file back, or name another with the target: `perf-advisor TARGET --resume --config FILE`.",
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
        old, new = getattr(before, name), getattr(now, name)
        if old != new:
            yield f"{option} is {_shown(new)}, and was {_shown(old)}"
    if facts.sources and before.directory != now.directory:
        yield f"the folder is {now.directory}, and was {before.directory}"
    config, _ = without_secrets(now.config)
    if changes := differences(before.config, config):
        yield f"of the config {format_first(changes, _MOST_SHOWN)}"
    for path in changed_sources(facts.sources):
        yield f"{_near(path, now.directory)} {'has changed' if exists(path) else 'is gone'}"


def differences(before: Any, now: Any) -> list[str]:
    """The changes from one config to another, a few words for each value; types count, as 1 and True differ."""
    old, new = ({path: text for path, text in _flat(config or {}, "") if path} for config in (before, now))
    changes = [f"{path} is {new[path]} (was {text})" for path, text in old.items() if new.get(path, text) != text]
    gone = [f"{path} is gone" for path in old if path not in new]
    return [*changes, *gone, *(f"{path} is new" for path in new if path not in old)]


def _flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield each single value of a config as text, with its dotted name."""
    inner = dict(enumerate(value)) if isinstance(value, list | tuple) else value
    if not (isinstance(inner, Mapping) and inner):
        yield path, repr(sorted(map(repr, value)) if isinstance(value, set | frozenset) else value)
        return
    for key, one in inner.items():
        yield from _flat(one, f"{path}.{key}".lstrip(".") if isinstance(key, str) else f"{path}[{key!r}]")


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return "not given" if value is None else str(value)


def _near(path: str, directory: str) -> str:
    root = Path(directory).resolve()
    return str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path
