"""Settings: an immutable mapping of setting keys to values, and its YAML form.

The YAML is a flat mapping such as ``precision.autocast: bfloat16``, either a whole file or the ``perf_advisor:``
section of a user's config. A file can set settings and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, ItemsView, Iterator, Mapping
from pathlib import Path
from typing import Any

from advisor.errors import UsageError
from advisor.records import Value, text_of

SECTION = "perf_advisor"
_KEY = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")


class Settings(Mapping[str, Value]):
    """An immutable, hashable mapping of setting keys to values, ordered by key."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Value] | None = None) -> None:
        if isinstance(values, Settings):
            self._values: dict[str, Value] = values._values
            return
        given: Mapping[Any, Any] = values or {}
        for key, value in given.items():
            if not _is_key(key):
                hint = "Keys look like `precision.autocast`; `perf-advisor recipes` lists them."
                raise UsageError(f"{key!r} is not a setting key.", hint)
            if not isinstance(value, Value):
                hint = "A setting's value is a boolean, a number or a word."
                raise UsageError(f"the value of {key} is a {type(value).__name__}.", hint)
        self._values = dict(sorted(given.items()))

    @classmethod
    def _of(cls, values: dict[str, Value]) -> Settings:
        settings = cls.__new__(cls)
        settings._values = values
        return settings

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def items(self) -> ItemsView[str, Value]:
        """The keys with their values. This is the dictionary's own view, because a search asks millions of times."""
        return self._values.items()

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Settings):
            return self._values == other._values
        return isinstance(other, Mapping) and self._values == dict(other)

    def __repr__(self) -> str:
        return f"Settings({self._values!r})"

    def __str__(self) -> str:
        return ", ".join(f"{key}: {text_of(value)}" for key, value in self._values.items()) or "none"

    def with_value(self, key: str, value: Value) -> Settings:
        """These settings with one added or replaced."""
        return Settings({**self._values, key: value})

    def without(self, key: str) -> Settings:
        """These settings without one key; the same settings if the key is absent."""
        if key not in self._values:
            return self
        return self._of({name: value for name, value in self._values.items() if name != key})

    def filtered(self, wanted: Callable[[str], bool]) -> Settings:
        """The settings for whose keys ``wanted`` is true."""
        return self._of({key: value for key, value in self._values.items() if wanted(key)})

    def merged(self, other: Mapping[str, Value]) -> Settings:
        """These settings and the others; for a key in both, the other value wins."""
        if isinstance(other, Settings):
            return self._of(dict(sorted((self._values | other._values).items())))
        return Settings({**self._values, **other})

    def to_yaml(self) -> str:
        """A flat YAML mapping, one ``key: value`` a line."""
        from advisor.files.config_file import dumped  # late, as below: YAML takes long to load

        return dumped(self._values) if self._values else "{}\n"

    @classmethod
    def from_yaml(cls, text: str, source: str = "settings") -> Settings:
        """Read settings from YAML text: a flat mapping, or a config with a ``perf_advisor:`` section.

        Values behind unknown tags (those of other programs) are not read. Raises UsageError if the text is not YAML,
        or holds anything but settings.
        """
        from advisor.files.config_file import SettingsLoader, is_toml, parsed

        data = parsed(text, source, SettingsLoader)
        if isinstance(data, Mapping) and SECTION in data:
            data = _dotted(data[SECTION]) if is_toml(source) else data[SECTION]
        elif isinstance(data, Mapping) and data and not any(map(_is_key, data)):
            raise UsageError(
                f"{source} holds no settings: its keys, such as {next(iter(data))!r}, are those of a config.",
                f"Give the settings file (tuned.yaml), or a config with a section `{SECTION}:`.",
            )
        if data is not None and not isinstance(data, Mapping):
            raise UsageError(
                f"{source} holds a {type(data).__name__}, not a mapping of settings.",
                "Write one `key: value` a line, for example `precision.autocast: bfloat16`.",
            )
        return cls(data)

    @classmethod
    def from_file(cls, path: str | Path) -> Settings:
        """Read settings from a YAML file. Raises UsageError if it cannot be read, or holds anything but settings."""
        from advisor.files.config_file import read_text

        return cls.from_yaml(read_text(path), source=str(path))


def _dotted(section: Any) -> Any:
    """A TOML table as flat keys: TOML reads ``compile.mode = "default"`` as a table in a table."""
    if not isinstance(section, dict):
        return section
    flat: dict[str, Any] = {}
    for key, value in section.items():
        inner = _dotted(value)
        flat |= {f"{key}.{name}": item for name, item in inner.items()} if isinstance(inner, dict) else {key: inner}
    return flat


def _is_key(key: Any) -> bool:
    return isinstance(key, str) and bool(_KEY.fullmatch(key))
