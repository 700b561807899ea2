"""The table of words, ``words.yaml``: names that programs and people have for settings."""

import functools
from collections.abc import Mapping
from pathlib import Path

import msgspec

from advisor.files.config_file import parsed
from advisor.records import ConfigKind, Value

# What a config says for a setting: the name of an entry that takes the value as it is; or for some values entries with
# the words that they take. A name may lead through mappings, as in `a.b`. An entry whose name ends in `?` is written
# only where the config has something else there; one in `!` says the setting only where it is there. `*` stands for
# all other values, and as a word for the value itself.
Words = Mapping[str, Value | None]
Rules = Mapping[str, str | Mapping[Value, Words]]


class Program(msgspec.Struct, frozen=True):
    """A program that reads configs: the names that identify it, and its words for settings.

    ``own`` are argument names that hardly any other program has; ``values`` identify it by their content. ``shared``
    names count if a ``sure`` name is there too, by default any own name. No name counts if a name of ``others`` is
    there: programs that adopted names of this one.
    """

    rules: Rules
    own: frozenset[str]
    sure: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    values: dict[str, frozenset[str]] = {}


class Names(msgspec.Struct, frozen=True):
    """Names in a config that mean this setting only, besides the last part of its key.

    ``words`` are keys that hold its value; it is replaced if it means the loop's present value. ``booleans`` mean the
    setting's value when true, and ``otherwise`` when false. ``switches`` switch the word next to them on.
    """

    words: frozenset[str] = frozenset()
    booleans: dict[str, frozenset[str]] = {}
    otherwise: str = ""
    switches: frozenset[str] = frozenset()


class Table(msgspec.Struct, frozen=True):
    """All words. ``totals`` follow from their parts beside them; ``types`` are ways to write types of numbers."""

    programs: dict[ConfigKind, Program]
    names: dict[str, Names]
    totals: dict[str, frozenset[str]]
    types: tuple[tuple[str, ...], ...]


@functools.cache
def table() -> Table:
    """The table, read once."""
    path = Path(__file__).with_name("words.yaml")
    return msgspec.convert(parsed(path.read_text(encoding="utf-8"), path.name), Table)
