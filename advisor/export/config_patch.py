"""Putting settings into a user's own YAML config, touching only the characters of the values that change.

The text is never dumped again: values are found by the marks of the parsed nodes and spliced. Comments, blank lines,
quoting, indentation, line endings, anchors and document markers stay as they were, byte for byte.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode

from advisor.errors import UsageError
from advisor.records import Value
from advisor.settings import SECTION

# What ends a line in YAML 1.1, as PyYAML reads it.
_BREAKS = "\r\n\x85\u2028\u2029"
_LINE = re.compile(rf"[^{_BREAKS}]*(?:\r\n|[{_BREAKS}])|[^{_BREAKS}]+")
_TAG = "tag:yaml.org,2002:"
_NUMBERS = (f"{_TAG}int", f"{_TAG}float")
_BOOLEANS = {
    word: pair
    for pair in (("true", "false"), ("yes", "no"), ("on", "off"))
    for spelling in (str.lower, str.capitalize, str.upper)
    for spelled in [(spelling(pair[0]), spelling(pair[1]))]
    for word, pair in ((spelled[0], spelled), (spelled[1], spelled))
}


@dataclass(frozen=True, slots=True)
class Patch:
    """A patched config. ``mapped``: the config's path of each setting that it had a place for already.

    ``added``: the settings that stand in the config's ``perf_advisor:`` section.
    """

    text: str
    mapped: dict[str, str]
    added: dict[str, Value]


@dataclass(frozen=True, slots=True)
class _Edit:
    """Characters ``start`` to ``end`` of the config become ``text``."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class _Place:
    """A scalar of the config: its path, for people, and its node."""

    path: str
    node: ScalarNode


def patch_config(
    text: str, settings: Mapping[str, Value], current: Mapping[str, Value], key_map: Mapping[str, str]
) -> Patch:
    """The config with these settings in it.

    A setting goes where ``key_map`` says (a dotted path; list indices are allowed); else to the value of the same
    name in the config, when that is unmistakable; else into the top-level ``perf_advisor:`` section. ``current``
    holds the user's present values: a word is only replaced where the config says the same word.

    Raises UsageError when the text is not one YAML mapping, or when a path of ``key_map`` is not a value in it.
    """
    config = _Config(text)
    places = {key: _place(config, key, settings, current, key_map) for key in settings}
    mapped = {key: place for key, place in places.items() if place is not None}
    _refuse_clashes(mapped)
    added = {key: value for key, value in settings.items() if places[key] is None}
    edits = [edit for key, place in mapped.items() if (edit := config.replace(place.node, settings[key]))]
    edits += _section_edits(config, added)
    patched = _spliced(text, edits)
    _verify(config, patched)
    return Patch(patched, {key: place.path for key, place in mapped.items()}, added)


def check_key_map(text: str, key_map: Mapping[str, str]) -> None:
    """Raise UsageError, as ``patch_config`` would, where a path of ``key_map`` is not a value in the config."""
    config = _Config(text)
    _refuse_clashes({key: _by_path(config, key, path) for key, path in key_map.items()})


def diff(old: str, new: str, name: str) -> str:
    """The change as a unified diff; empty when there is none. Line endings are shown as plain newlines."""
    lines = difflib.unified_diff(_LINE.findall(old), _LINE.findall(new), f"a/{name}", f"b/{name}")
    shown: list[str] = []
    for line in lines:
        ends = line.endswith(tuple(_BREAKS))
        shown.append(line.rstrip(_BREAKS))
        if not ends:
            shown.append("\\ No newline at end of file")
    return "".join(f"{line}\n" for line in shown)


# --- reading --------------------------------------------------------------------------------------------------


class _Config:
    """A parsed config. The node tree is changed along with the edits: it is what the patched text must parse to."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.root = _composed(text)
        self.newline = next((match[0] for match in re.finditer(r"\r\n|\r|\n", text)), "\n")
        self.is_json = _is_json(text)
        self.shared = _shared(self.root)

    @property
    def section(self) -> tuple[Node, Node] | None:
        """The key and the value of the ``perf_advisor:`` section."""
        found = _entries(self.root, SECTION)
        if len(found) > 1:
            raise UsageError(f"the config has {len(found)} sections {SECTION}:.", "Leave one of them and try again.")
        return found[0] if found else None

    def can_replace(self, node: Node) -> bool:
        """Whether a value can be exchanged without touching anything else: a plain or quoted scalar of its own."""
        return (
            isinstance(node, ScalarNode)
            and id(node) not in self.shared
            and node.style not in ("|", ">")
            and self.text[node.start_mark.index : node.start_mark.index + 1] not in ("&", "!", "*")
            and (self._source(node) != "" or self.text[: node.start_mark.index].rstrip().endswith(":"))
        )

    def replace(self, node: ScalarNode, value: Value) -> _Edit | None:
        """The edit that gives a scalar this value; None when it has it already."""
        if _same_value(_loaded(node), value):
            return None
        spelled = _spelled(value, like=node, as_json=self.is_json)
        start, end = node.start_mark.index, node.end_mark.index
        new = _scalar(spelled)
        node.tag, node.value = new.tag, new.value
        return _Edit(start, end, spelled if end > start else f" {spelled}")

    def _source(self, node: Node) -> str:
        return self.text[node.start_mark.index : node.end_mark.index]


def _composed(text: str) -> Node | None:
    try:
        documents = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"the config is not valid YAML: {_reason(error)}.", "Mend the file and try again.") from error
    if len(documents) > 1:
        raise UsageError(
            f"the config holds {len(documents)} YAML documents.",
            "Give a config of one document, without `---` between.",
        )
    root = documents[0] if documents else None
    if root is None or isinstance(root, MappingNode) or _is_blank(root):
        return root
    kind = "list" if isinstance(root, SequenceNode) else "single value"
    raise UsageError(
        f"the config holds a {kind} at its top level (line {root.start_mark.line + 1}), not a mapping.",
        "Give a config of `key: value` lines.",
    )


def _is_blank(root: Node) -> bool:
    return isinstance(root, ScalarNode) and root.start_mark.index == root.end_mark.index


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"line {error.problem_mark.line + 1}: {error.problem or error.context}"
    return " ".join(str(error).split())[:200]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _shared(root: Node | None) -> set[int]:
    """The ids of nodes that several places of the config lead to: anchors with aliases, and all below them."""
    visits: Counter[int] = Counter()
    stack = [root] if root is not None else []
    while stack:
        node = stack.pop()
        visits[id(node)] += 1
        if visits[id(node)] <= 2:
            stack += _children(node)
    return {node_id for node_id, count in visits.items() if count > 1}


def _children(node: Node) -> list[Node]:
    if isinstance(node, MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, SequenceNode) else []


def _entries(node: Node | None, key: str) -> list[tuple[Node, Node]]:
    """The entries of a mapping under one key; more than one when the config repeats it."""
    if not isinstance(node, MappingNode):
        return []
    return [pair for pair in node.value if isinstance(pair[0], ScalarNode) and pair[0].value == key]


# --- where a setting goes -------------------------------------------------------------------------------------


def _place(
    config: _Config,
    key: str,
    settings: Mapping[str, Value],
    current: Mapping[str, Value],
    key_map: Mapping[str, str],
) -> _Place | None:
    """The scalar that a setting belongs in, or None for the section."""
    if key in key_map:
        return _by_path(config, key, key_map[key])
    section = config.section
    if section and _entries(section[1], key):
        return None
    exact = _resolved(config.root, key.split("."))
    if len(exact) == 1 and config.can_replace(exact[0]) and _compatible(exact[0], settings[key]):
        assert isinstance(exact[0], ScalarNode)
        return _Place(key, exact[0])
    return _by_last_name(config, key, settings, current)


def _by_path(config: _Config, key: str, path: str) -> _Place:
    """Where ``--map key=path`` leads. Raises UsageError when that is nowhere, or not a single value."""
    parts = re.sub(r"\[(\d+)\]", r".\1", path).split(".")
    found = _resolved(config.root, parts)
    option = f"--map {key}={path}"
    if not found:
        raise UsageError(f"{option}: the config has no {path!r}.", _what_exists(config.root, parts))
    node = found[0]
    if not isinstance(node, ScalarNode):
        kind = "mapping" if isinstance(node, MappingNode) else "list"
        raise UsageError(f"{option}: {path!r} is a {kind}, not a value.", _what_exists(config.root, [*parts, ""]))
    if len(found) > 1 or not config.can_replace(node):
        raise UsageError(
            f"{option}: the value of {path!r} (line {node.start_mark.line + 1}) cannot be replaced: it is repeated, "
            "shared through an anchor, tagged, or a block of text.",
            "Give the path of a plain value, or leave the option out.",
        )
    return _Place(path, node)


def _resolved(node: Node | None, parts: Sequence[str]) -> list[Node]:
    """The nodes at a path. A key with dots in it may take several parts at once."""
    if node is None or not parts:
        return [node] if node is not None else []
    if isinstance(node, SequenceNode):
        inside = parts[0].isdigit() and int(parts[0]) < len(node.value)
        return _resolved(node.value[int(parts[0])], parts[1:]) if inside else []
    found: list[Node] = []
    for taken in range(1, len(parts) + 1):
        for _, value in _entries(node, ".".join(parts[:taken])):
            found += _resolved(value, parts[taken:])
    return found


def _what_exists(root: Node | None, parts: Sequence[str]) -> str:
    """A hint: the keys at the deepest part of the path that exists."""
    for taken in range(len(parts) - 1, -1, -1):
        found = _resolved(root, parts[:taken])
        if found and not isinstance(found[0], ScalarNode):
            return _keys_of(found[0], ".".join(parts[:taken]) or "its top level")
    return "The config is empty."


def _keys_of(node: Node, where: str) -> str:
    if isinstance(node, SequenceNode):
        return f"{where} is a list of {len(node.value)}: give an index from 0 to {len(node.value) - 1}."
    keys = [str(key.value) for key, _ in node.value if isinstance(key, ScalarNode)]
    return f"{where} has: {', '.join(keys)}." if keys else f"{where} is empty."


def _by_last_name(
    config: _Config, key: str, settings: Mapping[str, Value], current: Mapping[str, Value]
) -> _Place | None:
    """The only scalar of the config that is named like the last part of the key, if it is of a fitting type."""
    name = key.rpartition(".")[2]
    if [other.rpartition(".")[2] for other in settings].count(name) > 1:
        return None
    found = [place for place in _scalars(config) if place[0][-1:] == (name,)]
    if len(found) != 1:
        return None
    path, node = found[0]
    fits = config.can_replace(node) and _compatible(node, settings[key])
    if not fits or (isinstance(settings[key], str) and _loaded(node) != current.get(key)):
        return None
    return _Place(".".join(path), node)


def _scalars(config: _Config) -> Iterator[tuple[tuple[str, ...], ScalarNode]]:
    """Every scalar under a key, outside the section, with its path; what an alias repeats comes once."""
    stack: list[tuple[tuple[str, ...], Node]] = [((), config.root)] if config.root is not None else []
    seen: set[int] = set()
    while stack:
        path, node = stack.pop()
        if isinstance(node, ScalarNode):
            yield path, node
        if id(node) in seen or path == (SECTION,):
            continue
        seen.add(id(node))
        stack += [((*path, name), child) for name, child in _named_children(node)]


def _named_children(node: Node) -> list[tuple[str, Node]]:
    if isinstance(node, SequenceNode):
        return [(str(place), child) for place, child in enumerate(node.value)]
    if isinstance(node, MappingNode):
        return [(key.value, child) for key, child in node.value if isinstance(key, ScalarNode)]
    return []


def _compatible(node: Node, value: Value) -> bool:
    """Whether a scalar's present value is of the kind of the new one."""
    if isinstance(value, bool):
        return bool(node.tag == f"{_TAG}bool")
    if isinstance(value, int | float):
        return node.tag in _NUMBERS
    return bool(node.tag == f"{_TAG}str")


def _refuse_clashes(mapped: Mapping[str, _Place]) -> None:
    owners: dict[int, str] = {}
    for key, place in mapped.items():
        other = owners.setdefault(id(place.node), key)
        if other != key:
            raise UsageError(
                f"{other} and {key} both go to {place.path!r} of the config.", "Give one of them another --map."
            )


# --- spelling values ------------------------------------------------------------------------------------------


def _spelled(value: Value, *, like: ScalarNode | None = None, as_json: bool = False) -> str:
    """A value as YAML, in the style of the scalar that it replaces: its quotes, or its way to write booleans."""
    if isinstance(value, bool):
        words = _BOOLEANS.get(like.value if like is not None and like.style is None else "", _BOOLEANS["true"])
        return words[0] if value else words[1]
    if not isinstance(value, str):
        return str(yaml.safe_dump(value)).partition("\n")[0]
    style = like.style if like is not None else None
    if style == "'" and value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    if as_json or style == '"' or not _is_plain(value):
        return _double_quoted(value)
    return value


def _is_plain(value: str) -> bool:
    """Whether a string can stand without quotes, in a block as in a flow mapping."""
    try:
        loaded = yaml.safe_load(f"[{value}, x]"), yaml.safe_load(f"k: {value}\n")
    except (yaml.YAMLError, ValueError):
        return False
    return loaded == ([value, "x"], {"k": value})


def _double_quoted(value: str) -> str:
    dumped = yaml.safe_dump(value, default_style='"', width=2**31)
    return str(dumped).rstrip("\n")


def _scalar(spelled: str) -> ScalarNode:
    node = yaml.compose(spelled, Loader=yaml.SafeLoader)
    assert isinstance(node, ScalarNode), f"{spelled!r} is not a YAML scalar"
    return node


def _loaded(node: ScalarNode) -> object:
    """A scalar's value as Python; the node itself when its tag is unknown to the safe loader."""
    constructor = yaml.constructor.SafeConstructor()
    try:
        return constructor.construct_document(ScalarNode(node.tag, node.value))
    except (yaml.YAMLError, ValueError):
        return node


def _same_value(old: object, new: Value) -> bool:
    return isinstance(old, bool) == isinstance(new, bool) and old == new


# --- the section ----------------------------------------------------------------------------------------------


def _section_edits(config: _Config, added: Mapping[str, Value]) -> list[_Edit]:
    """The edits that put settings into the ``perf_advisor:`` section, which is made when there is none."""
    if not added:
        return []
    section = config.section
    if section is None:
        return [_new_section(config, added)]
    key, value = section
    if not isinstance(value, MappingNode):
        return [_filled_section(config, key, value, added)]
    if id(value) in config.shared:
        raise UsageError(f"the config's section {SECTION}: is an alias or has one.", "Write the section out in full.")
    return _changed_section(config, value, added)


def _changed_section(config: _Config, section: MappingNode, added: Mapping[str, Value]) -> list[_Edit]:
    edits: list[_Edit] = []
    fresh: dict[str, Value] = {}
    for key, value in added.items():
        present = _entries(section, key)
        if not present:
            fresh[key] = value
            continue
        node = present[0][1]
        if len(present) > 1 or not config.can_replace(node):
            raise UsageError(
                f"{SECTION}: {key} (line {node.start_mark.line + 1} of the config) is not one plain value.",
                "Remove it from the section and try again.",
            )
        assert isinstance(node, ScalarNode)
        edit = config.replace(node, value)
        edits += [edit] if edit else []
    if fresh:
        extend = _extended_flow if section.flow_style else _extended_block
        edits.append(extend(config, section, fresh))
    return edits


def _new_section(config: _Config, added: Mapping[str, Value]) -> _Edit:
    root = config.root
    if isinstance(root, MappingNode):
        if root.flow_style:
            return _extended_flow(config, root, {SECTION: added})
        return _extended_block(config, root, {SECTION: added})
    config.root = MappingNode(f"{_TAG}map", _nodes({SECTION: added}, config))
    return _lines_at(config, _end_of_content(config.text), _block_lines({SECTION: added}, "", config))


def _filled_section(config: _Config, key: Node, value: Node, added: Mapping[str, Value]) -> _Edit:
    """A section that is there with nothing in it gets its settings."""
    if not isinstance(value, ScalarNode) or value.tag != f"{_TAG}null" or not config.can_replace(value):
        raise UsageError(
            f"the config's section {SECTION}: (line {key.start_mark.line + 1}) is not a mapping of settings.",
            "Remove the section, or write one `key: value` a line under it.",
        )
    start, end = value.start_mark.index, value.end_mark.index
    root = config.root
    assert isinstance(root, MappingNode)
    root.value = [
        (name, MappingNode(f"{_TAG}map", _nodes(added, config)) if node is value else node) for name, node in root.value
    ]
    if start < end or root.flow_style:
        return _Edit(start, end, f"{'' if start < end else ' '}{{{_flow_entries(added, config)}}}")
    indent = _indent_of(config.text, key) + "  "
    return _lines_at(config, _next_line(config.text, end), _block_lines(added, indent, config))


_Tree = Mapping[str, Value] | Mapping[str, Mapping[str, Value]]


def _extended_block(config: _Config, mapping: MappingNode, entries: _Tree) -> _Edit:
    """Lines after a block mapping's last entry; before its first where text after the last would change that."""
    first = mapping.value[0][0]
    if _has_long_form(config.text, first):
        raise UsageError(
            f"line {first.start_mark.line + 1} of the config has a key in the long form (`? key`).",
            "Write one `key: value` a line there and try again.",
        )
    lines = _block_lines(entries, _indent_of(config.text, first), config)
    end = _end_of_entries(config, mapping)
    if end is None:
        mapping.value[:0] = _nodes(entries, config)
        start = _line_start(config.text, first.start_mark.index)
        return _Edit(start, start, "".join(line + config.newline for line in lines))
    mapping.value += _nodes(entries, config)
    return _lines_at(config, end, lines)


def _end_of_entries(config: _Config, mapping: MappingNode) -> int | None:
    """Where lines can follow a block mapping's last entry, or None where they cannot."""
    last = mapping.value[-1][1]
    if mapping is config.root:
        end = _end_of_content(config.text)
        unsafe = _ends_in_block_text(last) and config.text[:end][-1:] not in tuple(_BREAKS)
        return None if unsafe else end
    simple = isinstance(last, ScalarNode) and last.style not in ("|", ">")
    after_key = last.start_mark.index >= mapping.value[-1][0].end_mark.index
    return _next_line(config.text, last.end_mark.index) if simple and after_key else None


def _ends_in_block_text(node: Node) -> bool:
    """Whether a block scalar may reach to the end of a node: a line end that is added there would belong to it."""
    for _ in range(1000):
        children = _children(node)
        if not children:
            return isinstance(node, ScalarNode) and node.style in ("|", ">")
        node = children[-1]
    return True


def _extended_flow(config: _Config, mapping: MappingNode, entries: _Tree) -> _Edit:
    """Entries at the end of a flow mapping, on lines of their own where its other entries are."""
    closing = mapping.end_mark.index - 1
    inline = _flow_entries(entries, config)
    if not mapping.value:
        mapping.value += _nodes(entries, config)
        return _Edit(closing, closing, inline)
    first = mapping.value[0][0]
    end, comma = _end_of_flow_entries(config.text, closing)
    mapping.value += _nodes(entries, config)
    line = _line_start(config.text, first.start_mark.index)
    before = config.text[line : first.start_mark.index]
    gap = config.newline + before if not before.strip() and line > 0 else " "
    return _Edit(end, end, ("" if comma else ",") + gap + inline)


def _end_of_flow_entries(text: str, closing: int) -> tuple[int, bool]:
    """Where the last token before a flow mapping's closing brace ends, and whether it is a comma."""
    end, comma = 0, False
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if token.start_mark.index >= closing:
            break
        end = token.end_mark.index
        comma = isinstance(token, yaml.FlowEntryToken)
    return end, comma


def _flow_entries(entries: _Tree, config: _Config) -> str:
    def name(key: str) -> str:
        return _double_quoted(key) if config.is_json else key

    parts = [
        f"{name(key)}: {{{_flow_entries(value, config)}}}"
        if isinstance(value, Mapping)
        else f"{name(key)}: {_spelled(value, as_json=config.is_json)}"
        for key, value in entries.items()
    ]
    return ", ".join(parts)


def _block_lines(entries: _Tree, indent: str, config: _Config) -> list[str]:
    lines: list[str] = []
    for key, value in entries.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{key}:", *_block_lines(value, indent + "  ", config)]
        else:
            lines.append(f"{indent}{key}: {_spelled(value)}")
    return lines


def _nodes(entries: _Tree, config: _Config) -> list[tuple[Node, Node]]:
    """The nodes that new entries must parse to."""
    return [
        (
            ScalarNode(f"{_TAG}str", key),
            MappingNode(f"{_TAG}map", _nodes(value, config))
            if isinstance(value, Mapping)
            else _scalar(_spelled(value, as_json=config.is_json)),
        )
        for key, value in entries.items()
    ]


# --- text -----------------------------------------------------------------------------------------------------


def _spliced(text: str, edits: Sequence[_Edit]) -> str:
    """The text with the edits made; of two at one place, the earlier in the list comes first in the text."""
    in_order = sorted(edits, key=lambda edit: (edit.start, edit.end))
    for edit in reversed(in_order):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def _lines_at(config: _Config, index: int, lines: Sequence[str]) -> _Edit:
    """Whole lines at a line's start or the text's end; a file without a final line end stays without one."""
    joined = config.newline.join(lines)
    if config.text[:index].strip("\ufeff") and config.text[index - 1] not in _BREAKS:
        return _Edit(index, index, config.newline + joined)
    return _Edit(index, index, joined + config.newline)


def _end_of_content(text: str) -> int:
    """Where the document ends: before its ``...`` line, or at the end of the text."""
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, yaml.DocumentEndToken) and token.start_mark.index < token.end_mark.index:
            return int(token.start_mark.index)
    return len(text)


def _line_start(text: str, index: int) -> int:
    start = max(text.rfind(character, 0, index) for character in _BREAKS) + 1
    return 1 if start == 0 and text.startswith("\ufeff") else start


def _next_line(text: str, index: int) -> int:
    match = _LINE.match(text, index)
    return match.end() if match else len(text)


def _has_long_form(text: str, key: Node) -> bool:
    """Whether a key comes after a ``?`` (only then has its token a width), or on the line of a long form's ``:``."""
    if text[_line_start(text, key.start_mark.index) : key.start_mark.index].strip():
        return True
    width = 0
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if token.start_mark.index > key.start_mark.index:
            break
        if isinstance(token, yaml.KeyToken):
            width = token.end_mark.index - token.start_mark.index
    return width > 0


def _indent_of(text: str, key: Node) -> str:
    line = text[_line_start(text, key.start_mark.index) : key.start_mark.index]
    return line[: len(line) - len(line.lstrip(" "))]


# --- verification ---------------------------------------------------------------------------------------------


def _verify(config: _Config, patched: str) -> None:
    """The patched text must parse to the node tree that the edits were meant to give: an invariant of ours."""
    try:
        found = yaml.compose(patched, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError) as error:
        raise AssertionError(f"the patched config is not valid YAML: {_reason(error)}") from error
    assert _outline(found) == _outline(config.root), "the patched config does not hold what it should"


def _outline(root: Node | None) -> list[tuple[str, str, object]]:
    """Every node in order with its tag and value; a node that comes again is named by the place where it first came."""
    places: dict[int, int] = {}
    outline: list[tuple[str, str, object]] = []
    stack = [root] if root is not None else []
    while stack:
        node = stack.pop()
        if id(node) in places:
            outline.append(("again", "", places[id(node)]))
            continue
        places[id(node)] = len(outline)
        children = _children(node)
        outline.append((type(node).__name__, node.tag, node.value if isinstance(node, ScalarNode) else len(children)))
        stack += reversed(children)
    return outline
