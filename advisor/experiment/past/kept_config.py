"""The user's config as JSON and back, without loss: dates, sets, tuples, bytes and names that are numbers stay so."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any


@dataclass(frozen=True, slots=True)
class _Form:
    """The JSON form of values of one type: ``{name: content}``."""

    name: str
    kind: type
    content: Callable[[Any], Any]
    value: Callable[[Any], Any]


def to_json(value: Any) -> Any:
    """A config's value as ``json`` can write it; an object that no config file can hold is kept as text."""
    if isinstance(value, list):
        return [to_json(inner) for inner in value]
    form = next((form for form in _FORMS if isinstance(value, form.kind)), None)
    if form is not None:
        return {form.name: form.content(value)}
    return value if value is None or isinstance(value, str | int | float) else str(value)


def from_json(value: Any) -> Any:
    """The value that :func:`to_json` was given. Raises ValueError, TypeError and LookupError for anything else."""
    if isinstance(value, list):
        return [from_json(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    ((name, content),) = value.items()
    return _BY_NAME[name].value(content)


def _listed(value: Any) -> list[Any]:
    return [to_json(inner) for inner in value]


_FORMS = (
    _Form(
        "mapping",
        Mapping,
        lambda value: [[to_json(key), to_json(inner)] for key, inner in value.items()],
        lambda pairs: {from_json(key): from_json(inner) for key, inner in pairs},
    ),
    *(
        _Form(kind.__name__, kind, _listed, lambda content, kind=kind: kind(map(from_json, content)))  # type: ignore[misc]
        for kind in (tuple, set, frozenset)
    ),
    _Form("bytes", bytes, bytes.hex, bytes.fromhex),
    # A datetime is a date as well, and comes first.
    *(_Form(kind.__name__, kind, kind.isoformat, kind.fromisoformat) for kind in (datetime, date, time)),
)
_BY_NAME = {form.name: form for form in _FORMS}


def differences(before: Any, now: Any) -> tuple[str, ...]:
    """The changes from one config to another, a few words for each value; types count, as 1 and True differ."""
    old, new = dict(_flat(before)), dict(_flat(now))
    told = [f"{path} is {new[path]} (was {text})" for path, text in old.items() if path in new and new[path] != text]
    gone = [f"{path} is gone" for path in old if path not in new]
    return (*told, *gone, *(f"{path} is new" for path in new if path not in old))


def _flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        return [pair for key, inner in value.items() for pair in _flat(inner, _joined(path, key))]
    if isinstance(value, list | tuple) and value:
        return [pair for place, inner in enumerate(value) for pair in _flat(inner, _joined(path, place))]
    shown = sorted(map(repr, value)) if isinstance(value, set | frozenset) else value
    return [(path, repr(shown))]


def _joined(path: str, key: Any) -> str:
    if not isinstance(key, str):
        return f"{path}[{key!r}]"
    return f"{path}.{key}" if path else key
