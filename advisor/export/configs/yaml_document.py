"""A YAML or JSON config, touching only the characters of the values that change.

The text is never dumped again: values are found by the marks of the parsed nodes and spliced. Comments, blank lines,
quoting, indentation, line endings, anchors and document markers stay as they were, byte for byte.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode

from advisor.errors import UsageError
from advisor.export.configs.document import Path, Scalar, is_index, is_interpolation, same_value
from advisor.export.configs.yaml_nodes import (
    BREAKS,
    TAG,
    children,
    composed,
    entries_of,
    line_of,
    loaded,
    plain,
    shared,
    spelled,
    spelled_key,
)
from advisor.files.config_file import ConfigLoader, blank_comments
from advisor.recipe.settings import SECTION

LINE = re.compile(rf"[^{BREAKS}]*(?:\r\n|[{BREAKS}])|[^{BREAKS}]+")
_UNTOUCHED = "&!*"
# New entries of a mapping: values, and mappings of such.
_Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Edit:
    """Characters ``start`` to ``end`` of the config become ``text``."""

    start: int
    end: int
    text: str


@dataclass(slots=True)
class _Addition:
    """Entries to add to a mapping, or to an empty value that becomes one; ``parent`` has the empty value."""

    node: Node | None
    key: Node | None
    parent: Node | None
    tree: _Tree = field(default_factory=dict)


class YamlDocument:
    """A parsed config, and the edits to its text. ``_wanted`` is what the patched text must parse to."""

    def __init__(self, text: str) -> None:
        self.source = text
        self.root, self.as_json = composed(text)
        found = plain(self.root)
        self.tree: dict[str, Any] = found if isinstance(found, dict) else {}
        self._wanted = plain(self.root) or {}
        self._newline = next((match[0] for match in re.finditer(r"\r\n|\r|\n", text)), "\n")
        self._shared = shared(self.root)
        self._edits: list[_Edit] = []
        self._additions: dict[int, _Addition] = {}

    # --- what the patch asks ----------------------------------------------------------------------------------

    def obstacle(self, path: Path) -> str:
        """The reason why a path can hold no value; empty where it can."""
        node: Node | None = self.root
        key: Node | None = None
        for place, part in enumerate(path):
            found = self._below(node, part)
            if len(found) > 1:
                return f"{_dotted(path[: place + 1])} is repeated"
            if not found:
                return self._no_room(node, key, path[:place])
            key, node = found[0]
        if not isinstance(node, ScalarNode):
            return f"{_dotted(path)} is a {'mapping' if isinstance(node, MappingNode) else 'list'}, not a value"
        return "" if self._can_replace(node) else f"{_dotted(path)} (line {self._line(node)}) {self._bound(node)}"

    def replace_or_add(self, path: Path, value: Scalar) -> None:
        """Put a value at a path where there is no obstacle."""
        node, key, parent = self.root, None, None
        for place, part in enumerate(path):
            found = self._below(node, part)
            if not found:
                addition = self._additions.setdefault(id(node), _Addition(node, key, parent))
                _put(addition.tree, path[place:], value)
                _put(self._wanted, path, value)
                return
            parent, (key, node) = node, found[0]
        assert isinstance(node, ScalarNode), f"{path} is no value"
        if not same_value(loaded(node), value):
            self._replace(node, value)
            _put(self._wanted, path, value)

    def text(self) -> str:
        """The text with all changes. Raises UsageError where its layout does not allow them."""
        text = _spliced(self.source, [*self._edits, *map(self._added, self._additions.values())])
        try:
            fits = _are_same(plain(composed(text)[0]) or {}, self._wanted, {})
        except UsageError:
            fits = False
        if not fits:
            raise UsageError(
                "the config's layout leaves no room for the settings.",
                "Export without --config, and load that file beside your config.",
            )
        return text

    # --- looking ----------------------------------------------------------------------------------------------

    def _below(self, node: Node | None, part: str) -> list[tuple[Node | None, Node]]:
        """The entries of a mapping under a key, or a list's item."""
        if isinstance(node, SequenceNode):
            inside = is_index(part) and int(part) < len(node.value)
            return [(None, node.value[int(part)])] if inside else []
        return [(key, value) for key, value in entries_of(node, part)]

    def _no_room(self, node: Node | None, key: Node | None, path: Path) -> str:
        """The reason that nothing can be added to the node at a path; empty where something can."""
        if node is None or (node is self.root and isinstance(node, ScalarNode)):
            return ""  # an empty config
        if isinstance(node, ScalarNode):
            empty = node.tag == f"{TAG}null" and self._can_replace(node) and key is not None
            return "" if empty else f"{_dotted(path)} is a value, not a mapping"
        if not isinstance(node, MappingNode):
            return f"{_dotted(path)} is a list"
        if id(node) in self._shared or node.tag != f"{TAG}map":
            return f"{_dotted(path)} is shared through an anchor, or tagged"
        return "" if node.flow_style or self._line_for(node) is not None else f"{_dotted(path)} ends in a block of text"

    def _bound(self, node: ScalarNode) -> str:
        if is_interpolation(node.value):
            return f"is computed: `{node.value}`"
        return "cannot be replaced: it is shared through an anchor, tagged, or a block of text"

    def _can_replace(self, node: ScalarNode) -> bool:
        """Whether a value can be exchanged without touching anything else: a plain or quoted scalar of its own."""
        start, end = node.start_mark.index, node.end_mark.index
        return (
            id(node) not in self._shared
            and node.style not in ("|", ">")
            and self.source[start : start + 1] not in tuple(_UNTOUCHED)
            and not is_interpolation(node.value)
            and (start < end or self.source[:start].rstrip().endswith(":"))
        )

    def _line(self, node: Node) -> int:
        return line_of(self.source, node)

    # --- changing ---------------------------------------------------------------------------------------------

    def _replace(self, node: ScalarNode, value: Scalar) -> None:
        text = spelled(value, like=node, as_json=self.as_json)
        start, end = node.start_mark.index, node.end_mark.index
        self._edits.append(_Edit(start, end, text if end > start else f" {text}"))

    def _added(self, addition: _Addition) -> _Edit:
        """The edit that adds entries."""
        node, entries = addition.node, addition.tree
        if isinstance(node, MappingNode):
            return self._extended_flow(node, entries) if node.flow_style else self._extended_block(node, entries)
        if node is None or addition.key is None or not isinstance(addition.parent, MappingNode):
            return self._lines_at(_end_of_content(self.source), self._block_lines(entries, ""))
        start, end = node.start_mark.index, node.end_mark.index
        if start < end or addition.parent.flow_style:
            return _Edit(start, end, f"{'' if start < end else ' '}{{{self._flow_entries(entries)}}}")
        indent = _indent_of(self.source, addition.key) + "  "
        return self._lines_at(_next_line(self.source, end), self._block_lines(entries, indent))

    def _extended_block(self, mapping: MappingNode, entries: _Tree) -> _Edit:
        """Lines after a block mapping's last entry; elsewhere in it where text after the last would change that."""
        first = mapping.value[0][0]
        lines = self._block_lines(entries, _indent_of(self.source, first))
        where = self._line_for(mapping)
        assert where is not None, "an obstacle"
        index, place = where
        if place == 0:
            return _Edit(index, index, "".join(line + self._newline for line in lines))
        return self._lines_at(index, lines)

    def _line_for(self, mapping: MappingNode) -> tuple[int, int] | None:
        """The position for new lines in a block mapping: the index in the text, and the place among the entries."""
        if mapping is self.root:
            end, last = _end_of_content(self.source), mapping.value[-1][1]
            if not _ends_in_block_text(last) or self.source[:end][-1:] in tuple(BREAKS):
                return end, len(mapping.value)
        for place in range(len(mapping.value), 0, -1):
            key, value = mapping.value[place - 1]
            simple = isinstance(value, ScalarNode) and value.style not in ("|", ">")
            if simple and value.start_mark.index >= key.end_mark.index:
                return _next_line(self.source, value.end_mark.index), place
        first = mapping.value[0][0].start_mark.index
        start = _line_start(self.source, first)
        return None if self.source[start:first].strip() else (start, 0)

    def _extended_flow(self, mapping: MappingNode, entries: _Tree) -> _Edit:
        """Entries at the end of a flow mapping, on lines of their own where its other entries are."""
        closing = mapping.end_mark.index - 1
        inline = self._flow_entries(entries)
        if not mapping.value:
            return _Edit(closing, closing, inline)
        first = mapping.value[0][0]
        end, comma = self._end_of_flow_entries(closing)
        line = _line_start(self.source, first.start_mark.index)
        before = self.source[line : first.start_mark.index]
        gap = self._newline + before if not before.strip() and line > 0 else " "
        if gap != " " and SECTION not in entries:
            inline = self._flow_entries(entries, f",{gap}")
        remark = "" if gap == " " else self._remark_after(end, closing)
        return _Edit(end, end + len(remark), ("" if comma else ",") + remark + gap + inline)

    def _remark_after(self, end: int, closing: int) -> str:
        """The comment behind the last entry on its line, which stays there."""
        line = LINE.match(self.source, end, closing)
        text = line[0].rstrip() if line else ""
        is_comment = not blank_comments(text).strip() if self.as_json else text.lstrip().startswith("#")
        return text if is_comment else ""

    def _end_of_flow_entries(self, closing: int) -> tuple[int, bool]:
        """The end of the last token before a flow mapping's closing brace, and whether that token is a comma."""
        if self.as_json:
            before = blank_comments(self.source)[:closing].rstrip()
            return len(before), before.endswith(",")
        end, comma = 0, False
        for token in yaml.scan(self.source, Loader=ConfigLoader):
            if token.start_mark.index >= closing:
                break
            end = token.end_mark.index
            comma = isinstance(token, yaml.FlowEntryToken)
        return end, comma

    def _flow_entries(self, entries: Mapping[str, Any], between: str = ", ") -> str:
        parts = [
            f"{spelled_key(key, as_json=self.as_json)}: "
            + (
                f"{{{self._flow_entries(value)}}}"
                if isinstance(value, Mapping)
                else spelled(value, as_json=self.as_json)
            )
            for key, value in entries.items()
        ]
        return between.join(parts)

    def _block_lines(self, entries: Mapping[str, Any], indent: str) -> list[str]:
        lines: list[str] = []
        for key, value in entries.items():
            name = f"{indent}{spelled_key(key, as_json=False)}:"
            if isinstance(value, Mapping):
                lines += [name, *self._block_lines(value, indent + "  ")]
            else:
                lines.append(f"{name} {spelled(value)}")
        return lines

    def _lines_at(self, index: int, lines: Sequence[str]) -> _Edit:
        """Whole lines at a line's start or the text's end; a file without a final line end stays without one."""
        joined = self._newline.join(lines)
        if self.source[:index].strip("\ufeff") and self.source[index - 1] not in BREAKS:
            return _Edit(index, index, self._newline + joined)
        return _Edit(index, index, joined + self._newline)


def _put(tree: Any, path: Path, value: Scalar) -> None:
    """Put a value at a path; mappings on the way are made."""
    for part in path[:-1]:
        if isinstance(tree, list):
            tree = tree[int(part)]
        else:
            tree[part] = {} if tree.get(part) is None else tree[part]
            tree = tree[part]
    tree[int(path[-1]) if isinstance(tree, list) else path[-1]] = value


def _are_same(one: object, other: object, known: dict[tuple[int, int], bool]) -> bool:
    """Whether two trees hold the same values of the same types; never of one that holds itself.

    ``known`` are the pairs of parts that were compared, since anchors may name a part many times.
    """
    pair = id(one), id(other)
    if pair not in known:
        known[pair] = False
        if isinstance(one, dict) and isinstance(other, dict):
            same = one.keys() == other.keys() and all(_are_same(one[key], other[key], known) for key in one)
        elif isinstance(one, list) and isinstance(other, list):
            same = len(one) == len(other) and all(map(_are_same, one, other, itertools.repeat(known)))
        else:
            same = type(one) is type(other) and repr(one) == repr(other)
        known[pair] = same
    return known[pair]


# --- text -------------------------------------------------------------------------------------------------------


def _dotted(path: Path) -> str:
    return repr(".".join(path)) if path else "the top level"


def _spliced(text: str, edits: Sequence[_Edit]) -> str:
    """The text with the edits made; of two at one place, the earlier in the list comes first in the text."""
    in_order = sorted(edits, key=lambda edit: (edit.start, edit.end))
    for edit in reversed(in_order):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def _ends_in_block_text(node: Node) -> bool:
    """Whether a block scalar may reach to the end of a node: a line end that is added there would belong to it."""
    for _ in range(1000):
        below = children(node)
        if not below:
            return isinstance(node, ScalarNode) and node.style in ("|", ">")
        node = below[-1]
    return True


def _end_of_content(text: str) -> int:
    """The end of the document's content: before its ``...`` line, or the end of the text."""
    for token in yaml.scan(text, Loader=ConfigLoader):
        if isinstance(token, yaml.DocumentEndToken) and token.start_mark.index < token.end_mark.index:
            return int(token.start_mark.index)
    return len(text)


def _line_start(text: str, index: int) -> int:
    start = max(text.rfind(character, 0, index) for character in BREAKS) + 1
    return 1 if start == 0 and text.startswith("\ufeff") else start


def _next_line(text: str, index: int) -> int:
    match = LINE.match(text, index)
    return match.end() if match else len(text)


def _indent_of(text: str, key: Node) -> str:
    """The blanks before a key; of the first in a list's item, as many as bring the next one under it."""
    before = text[_line_start(text, key.start_mark.index) : key.start_mark.index]
    return " " * len(before) if not before.strip(" -") else before[: len(before) - len(before.lstrip(" "))]
