"""Write settings into a user's own config, under the names of the program that reads the config.

A setting replaces the value that ``--map`` names; or else the framework's own key; or else the one value of the same
name, if its meaning is certain. In a plain config, all other settings go into a section ``perf_advisor:``. Parsers of
frameworks, jsonargparse (``class_path``) and yacs (names in capitals) refuse such a section. There, the other settings
are the ``rest``, which goes into a settings file beside the config.
"""

import difflib
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from advisor.errors import UsageError
from advisor.export.configs.document import (
    Document,
    Entry,
    ObstacleError,
    Path,
    Scalar,
    TomlDocument,
    YamlDocument,
    at,
    holds,
)
from advisor.export.configs.kinds import (
    entries_for,
    home_of,
    in_the_words_of,
    kind_of,
    names_classes,
    places_of,
    without_parts_of_a_total,
)
from advisor.export.configs.words import PERSISTENT, PREFETCH, WORKERS, Phrase, Wanted, words_of
from advisor.export.configs.words import phrases as phrases_of_nodes
from advisor.files.config_file import is_toml
from advisor.recipe.settings import SECTION
from advisor.records import ConfigKind, Value, text_of

_IN_A_GROUP = re.compile(r"\A\s*# @package\b")  # tells Hydra the place of a file's content in its config
_PROBE = "a-value-of-perf-advisor"  # no config holds this value; it tests whether a path can hold a value
_MAP_HINT = "Name the keys that lead to a plain value, as in trainer.precision or stages[0].lr; or leave --map out."


@dataclass(frozen=True, slots=True)
class Patch:
    """A patched config."""

    text: str
    kind: ConfigKind
    said: dict[str, tuple[Entry, ...]]  # setting -> the entries that were written for it
    added: dict[str, Value]  # the settings in the config's section ``perf_advisor:``
    rest: dict[str, Value]  # the settings that are not in the config
    remarks: tuple[str, ...]  # the reasons why existing entries were not used


def patched(text: str, wanted: Wanted, *, name: str = "config.yaml", kind: ConfigKind | None = None) -> Patch:
    """Write the wanted settings into a config. Without ``kind``, the config's keys decide its kind.

    Raises UsageError if the text is not one mapping, or if a path of ``key_map`` is not a value in it.
    """
    document = open_document(text, name)
    kind = kind or (ConfigKind.HYDRA if _IN_A_GROUP.search(text) else kind_of(document.tree))
    writer = _Writer(document, wanted)
    mapped = {key: path for key, path in wanted.key_map.items() if key in wanted.settings}
    for key, path in _mapped_places(document, mapped).items():
        value = _in_its_words(document.tree, key, wanted.settings[key], path, kind)
        writer.say(Phrase((key,), (Entry(path, value),)))
    # The settings with names in the config's program, or in the arguments of objects that the config makes.
    tree = document.tree
    everything = without_parts_of_a_total({**wanted.along, **wanted.settings}, tree)
    settings = {key: value for key, value in everything.items() if key not in wanted.key_map}
    config = replace(wanted, settings=settings, tree=tree, home=home_of(kind, tree))
    for phrase in (*words_of(kind, config), *phrases_of_nodes(config)):
        if all(map(writer.is_open, phrase.keys)):
            writer.say(phrase)
    writer.say_by_name()
    writer.drop_options_of_workers()
    rest = {key: value for key, value in wanted.settings.items() if key not in writer.said}
    of_yacs = len(tree) > 1 and all(isinstance(name, str) and name.isupper() for name in tree)
    in_section = SECTION in tree or (kind is ConfigKind.PLAIN and not names_classes(tree) and not of_yacs)
    if in_section:
        writer.document = _with_section(writer.document, rest)
    added, left = (rest, {}) if in_section else ({}, rest)
    return Patch(writer.document.text, kind, writer.said, added, left, tuple(writer.remarks))


def open_document(text: str, name: str) -> Document:
    """Parse a config's text, as TOML or YAML by the name of its file. Raises UsageError if it cannot be parsed."""
    return TomlDocument(text) if is_toml(name) else YamlDocument(text)


def check_key_map(text: str, key_map: Mapping[str, str], name: str = "config.yaml") -> None:
    """Raise UsageError if a path of ``key_map`` is not a value in the config; ``patched`` raises the same error."""
    _mapped_places(open_document(text, name), key_map)


def diff(old: str, new: str, name: str) -> str:
    """The change as a unified diff; empty if there is none. All line endings are shown as newlines."""
    before, after = (list(io.StringIO(text.replace("\r\n", "\n"), newline="\n")) for text in (old, new))
    lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


# --- writing ----------------------------------------------------------------------------------------------------


class _Writer:
    """Writes phrases into a document. A phrase is written whole, or not at all."""

    def __init__(self, document: Document, wanted: Wanted) -> None:
        self.document = document
        self.tree = document.tree  # the values before all changes
        self.wanted = wanted
        self.said: dict[str, tuple[Entry, ...]] = {}
        self.remarks: list[str] = []
        self._taken: set[Path] = set()
        self._blocked: set[str] = set()  # settings whose entries cannot be changed

    def say(self, phrase: Phrase) -> None:
        """Write a phrase's entries; if this is impossible, add a remark with the reason."""
        present = {entry: at(self.tree, entry.path) for entry in phrase.entries}
        entries = [one for one in present if not one.only_there or (present[one] and present[one] != one.value)]
        changed = self.document
        try:
            for entry in entries:
                changed = changed.changed(entry.path, entry.value)
        except ObstacleError as error:
            self.remarks.append(f"{', '.join(phrase.keys)}: the config's {error}")
            self._blocked.update(phrase.keys)
            return
        if any(entry.path in self._taken for entry in entries):
            return
        self.document = changed
        self._taken.update(entry.path for entry in entries)
        self.said |= dict.fromkeys(phrase.keys, tuple(entries))

    def say_by_name(self) -> None:
        """Write the remaining settings to values that are found by their usual names."""
        wanted = self.wanted
        last_names = [key.rpartition(".")[2] for key in wanted.settings]
        for key, value in wanted.settings.items():
            # A usual name can be ambiguous: the batch of one GPU or of all, or one of two settings of this name.
            of_one_process = key == "data.batch_size" and wanted.gpus > 1
            is_alone = last_names.count(key.rpartition(".")[2]) == 1
            if of_one_process or not is_alone or not self.is_open(key):
                continue
            places = places_of(key, self.tree, wanted.mode)
            if entries := entries_for(key, value, self.tree, wanted.current.get(key), places):
                self.say(Phrase((key,), entries))
            elif len({path[-1] for path in places}) == 1 < len(places):
                named = " or ".join(map(".".join, places))
                self.remarks.append(f"{key}: it could be {named}: choose one by --map {key}=PATH")

    def drop_options_of_workers(self) -> None:
        """If the settings ask for no workers, switch off the options that a loader without workers refuses."""
        if self.wanted.settings.get(WORKERS) != 0:
            return
        written = [path for path in self._taken if "num_workers" in path[-1]]
        for key, name, off in ((PREFETCH, "prefetch_factor", None), (PERSISTENT, "persistent_workers", False)):
            beside = [(*path[:-1], path[-1].replace("num_workers", name)) for path in written]
            entries = tuple(Entry(path, off) for path in beside if at(self.tree, path))
            if entries and self.is_open(key):
                self.say(Phrase((key,), entries))

    def is_open(self, key: str) -> bool:
        """Whether a setting is not yet written. False for options of workers if the number of workers has no entry."""
        section, settings = self.tree.get(SECTION), self.wanted.settings
        in_section = isinstance(section, dict) and key in section
        without_workers = key in (PERSISTENT, PREFETCH) and WORKERS in settings and WORKERS not in self.said
        return not in_section and not without_workers and key not in self.said and key not in self._blocked


# --- the section ------------------------------------------------------------------------------------------------


def _with_section(document: Document, settings: Mapping[str, Value]) -> Document:
    for key, value in settings.items():
        try:
            document = document.changed((SECTION, key), value)
        except ObstacleError as error:
            raise UsageError(
                f"the settings cannot go into the config's section {SECTION}: {error}.",
                f"Write {SECTION}: as one `key: value` a line, or export without --config.",
            ) from error
    return document


# --- what --map says --------------------------------------------------------------------------------------------


def _mapped_places(document: Document, key_map: Mapping[str, str]) -> dict[str, Path]:
    """The entry for each path. Raises UsageError if an entry is missing, or if two settings name the same entry."""
    places = {key: _by_path(document, key, path) for key, path in key_map.items()}
    if len({*places.values()}) < len(places):
        raise UsageError("--map gives several settings the same entry of the config.", _MAP_HINT)
    return places


def _in_its_words(tree: Mapping[str, Any], key: str, value: Value, path: Path, kind: ConfigKind) -> Scalar:
    """A setting's value in the config's vocabulary, for the entry of --map. Raises UsageError if it has none."""
    present = at(tree, path)
    option = f"--map {key}={'.'.join(path)}"
    entries = (
        entry for phrase in words_of(kind, Wanted({key: value}, tree=tree, home=path[:-1])) for entry in phrase.entries
    )
    if said := [entry.value for entry in entries if entry.path[-1] == path[-1] and not entry.only_there]:
        return said[0]
    word = in_the_words_of(present, path[-1], key, value)
    if word is None:
        raise UsageError(f"{option}: the config's {text_of(present)} cannot become {text_of(value)}.", _MAP_HINT)
    return word


def _by_path(document: Document, key: str, path: str) -> Path:
    """The entry that ``--map key=path`` names. Raises UsageError if it is missing, or is a mapping or a list."""
    option, parts = f"--map {key}={path}", tuple(re.sub(r"\[([0-9]{1,9})\]", r".\1", path).split("."))
    found = (path,) if path in document.tree else parts  # a top-level key may contain dots
    if not holds(at(document.tree, found[:-1]), found[-1]) or isinstance(at(document.tree, found), dict | list):
        raise UsageError(f"{option}: the config has no single value at {path!r}.", _MAP_HINT)
    try:
        document.changed(found, _PROBE)
    except ObstacleError as error:
        raise UsageError(f"{option}: {error}.", _MAP_HINT) from error
    return found
