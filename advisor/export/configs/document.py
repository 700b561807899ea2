"""Config files whose text can be patched, and functions to look up their values.

The text of a YAML or JSON config is never dumped again (ruamel.yaml's round trip changes blanks or comments in half of
public configs). A change is spliced into the text at the positions of the parsed nodes. It is kept only if the new text
parses to the old config with that change. Comments, blank lines, quotes, indentation, line endings, anchors and
document markers are not changed.
"""

import contextlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode

from advisor.errors import UsageError
from advisor.files.config_file import YAML_FAILURES, ConfigLoader, dumped, parsed, reason
from advisor.recipe.settings import SECTION
from advisor.records import Value, text_of

Path = tuple[str, ...]
Scalar = Value | None
_EVALUATION = frozenset(
    ["val", "valid", "validation", "validate", "eval", "evaluation", "evaluate", "dev", "test", "inference", "predict"]
)
_NEWLINE = re.compile(r"(?<!\r)\n")


@dataclass(frozen=True, slots=True)
class Entry:
    """A value at a path. With ``only_there``, it is written only if the config has another value at this path."""

    path: Path
    value: Scalar
    only_there: bool = False

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: {'null' if self.value is None else text_of(self.value)}"


class ObstacleError(Exception):
    """A path of a config cannot hold a value. The message continues "the config's ..."."""


class Document(ABC):
    """A config file's ``text``, and its ``tree`` of plain Python objects with strings as keys.

    Values with YAML tags are opaque objects in the tree. A patch does not change them.
    """

    tree: dict[str, Any]
    has_null = True

    def __init__(self, text: str) -> None:
        self.text = text

    @abstractmethod
    def texts_with(self, path: Path, value: Scalar) -> Iterable[str]:
        """Candidate texts with a value at a path, the best first. Raises ObstacleError if no text is possible."""

    def place_of(self, path: Path) -> str:
        """A path in words."""
        return repr(".".join(path)) if path else "the top level"

    def changed(self, path: Path, value: Scalar) -> Self:
        """Set a value at a path, and make missing mappings. In a format without null, None removes the value.

        Each candidate text is parsed: it must hold the new value, and all old values. Raises ObstacleError if no
        candidate does.
        """
        depth = 0
        node: Any = self.tree
        while depth < len(path) and holds(node, path[depth]):
            depth += 1
            node = at(self.tree, path[:depth])
        kind = "mapping" if isinstance(node, dict) else "list" if isinstance(node, list) else "value"
        needed = "value" if depth == len(path) else "mapping"
        if kind != needed and (node is not None or needed == "value"):
            raise ObstacleError(f"{self.place_of(path[:depth])} is a {kind}, not a {needed}")
        if is_interpolation(node):
            raise ObstacleError(f"{self.place_of(path)} is computed: `{node}`")
        if needed == "value" and isinstance(node, bool) == isinstance(value, bool) and node == value:  # true is not 1
            return self
        wanted = _with(self.tree, path, value)
        if value is None and not self.has_null:
            del at(wanted, path[:-1])[path[-1]]
        for text in self.texts_with(path, value):
            with contextlib.suppress(UsageError, ValueError, RecursionError):
                found = type(self)(text)
                if _canonical(found.tree) == _canonical(wanted):
                    return found
        raise ObstacleError(
            f"{self.place_of(path[:depth])} cannot be changed in the text: it is shared through an anchor, has a tag, "
            "or ends in a block of text"
        )


class TomlDocument(Document):
    """A TOML config. tomlkit keeps its comments and layout. Raises UsageError if the text is not TOML."""

    has_null = False

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.tree = parsed(text, "the config.toml")

    def texts_with(self, path: Path, value: Scalar) -> Iterator[str]:
        """The text with a value at a path. For None the value is removed, because TOML has no null."""
        import tomlkit

        document = tomlkit.parse(self.text)
        node: Any = document
        for part in path[:-1]:
            if isinstance(node, MutableMapping) and part not in node:
                node[part] = {}
            node = node[int(part)] if isinstance(node, list) else node[part]
        if value is None:
            del node[path[-1]]
        else:
            node[int(path[-1]) if isinstance(node, list) else path[-1]] = value
        # tomlkit ends the lines that it adds with "\n", even if all other lines end with "\r\n".
        is_windows = "\n" in self.text and not _NEWLINE.search(self.text)
        yield _NEWLINE.sub("\r\n" if is_windows else "\n", tomlkit.dumps(document))


def _with(tree: Any, path: Path, value: Scalar) -> Any:
    """A copy of a tree with a value at a path. Other values of the same alias are not changed."""
    if not path:
        return value
    inner = _with(at(tree, path[:1]), path[1:], value)
    if isinstance(tree, list):
        return [*tree[: int(path[0])], inner, *tree[int(path[0]) + 1 :]]
    return {**(tree or {}), path[0]: inner}


def _canonical(tree: Any) -> str:
    """A text that is equal for two trees if their values and types are equal."""
    return json.dumps(tree, sort_keys=True, default=repr)


def is_interpolation(value: object) -> bool:
    """Whether a value is computed when the config is read (``${model.width}``)."""
    return isinstance(value, str) and "${" in value


def evaluates(path: Sequence[str]) -> bool:
    """Whether a path is about evaluation or prediction (``val_loader``, for example)."""
    return any(part in _EVALUATION for name in path for part in name.lower().replace("-", "_").split("_"))


def at(tree: Any, path: Sequence[str]) -> Any:
    """The value at a path; None if the path does not exist."""
    for part in path:
        if not holds(tree, part):
            return None
        tree = tree[int(part)] if isinstance(tree, list) else tree[part]
    return tree


def holds(node: Any, name: str) -> bool:
    """Whether a mapping has this key, or a list has an item with this index."""
    if isinstance(node, Mapping):
        return name in node
    return isinstance(node, list) and name.isascii() and name.isdigit() and len(name) < 10 and int(name) < len(node)


def walk(tree: Any) -> Iterator[tuple[Path, Any]]:
    """All values in a config with their paths, without our own section. Values of an alias come only once."""
    stack: list[tuple[Path, Any]] = [((), tree)]
    seen: set[int] = set()
    while stack:
        path, node = stack.pop()
        yield path, node
        if path == (SECTION,) or not isinstance(node, dict | list) or id(node) in seen:
            continue
        seen.add(id(node))
        named = node.items() if isinstance(node, dict) else ((str(place), item) for place, item in enumerate(node))
        stack += reversed([((*path, name), item) for name, item in named])


_END_OF_DOCUMENT = re.compile(r"^\.\.\.(?=\s|\Z)", re.MULTILINE)
_AFTER_ENTRY = re.compile(r"(\s*,)?([ \t]*#[^\r\n]*)?")  # a comma and a comment after the last entry in braces
_SWITCHES = (("true", "false"), ("yes", "no"), ("on", "off"))


class YamlDocument(Document):
    """A parsed YAML or JSON config. Raises UsageError for a text that is not one mapping."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        found = _json(text)
        self._as_json = found is not None
        try:
            loader = _Words(text)
            root = found[0] if found else loader.get_single_node()
            tree = found[1] if found else loader.construct_document(root) if root else {}
        except YAML_FAILURES as error:
            hint = "Fix the error in the config. It must be one YAML document."
            raise UsageError(f"the config is not valid YAML: {reason(error)}.", hint) from error
        self._root, self.tree = root, tree if isinstance(tree, dict) else {}
        if root and not isinstance(root, MappingNode) and root.start_mark.index < root.end_mark.index:
            kind = "list" if isinstance(root, SequenceNode) else "single value"
            problem = f"the config holds a {kind} at its top level (line {root.start_mark.line + 1}), not a mapping."
            raise UsageError(problem, "Give a config of `key: value` lines.")

    def place_of(self, path: Path) -> str:
        """A path in words, with its line number."""
        node = self._nodes(path)[-1]
        return super().place_of(path) + (f" (line {node.start_mark.line + 1})" if node else "")

    def texts_with(self, path: Path, value: Scalar) -> Iterator[str]:
        """Candidate texts with a value at a path. The caller takes one that parses with only that change."""
        nodes = self._nodes(path)
        node, names = nodes[-1], [self._spelled(name) for name in path[len(nodes) - 1 :]]
        if not names:
            yield from self._replaced(node, self._spelled(value, node))
            return
        said = self._spelled(value)
        in_braces = f"{': {'.join(names)}: {said}{'}' * (len(names) - 1)}"
        if isinstance(node, MappingNode) and node.flow_style:
            yield from self._in_braces(node, in_braces)
        elif isinstance(node, MappingNode):
            for index in self._places(node):
                yield self._with_lines(index, self._indent(node), names, said)
        elif node is None or not nodes[1:]:  # an empty config
            yield self._with_lines(self._end(), "", names, said)
        elif node.start_mark.index < node.end_mark.index or nodes[-2].flow_style:
            yield from self._replaced(node, f"{{{in_braces}}}")
        else:
            yield self._with_lines(self._next_line(node), self._indent(nodes[-2]) + "  ", names, said)

    def _nodes(self, path: Path) -> list[Any]:
        """The existing nodes on a path, from the root on."""
        nodes: list[Any] = [self._root]
        for part in path:
            found = _below(nodes[-1], part)
            if len(found) > 1:
                raise ObstacleError(f"{super().place_of(path[: len(nodes)])} is repeated")
            if not found:
                break
            nodes += found
        return nodes

    def _replaced(self, node: Node, said: str) -> Iterator[str]:
        """Replace a scalar, unless it is a block of text or has an anchor or a tag."""
        text, start, end = self.text, node.start_mark.index, node.end_mark.index
        if not text.startswith(("&", "!", "*", "|", ">"), start):
            yield text[:start] + ("" if start < end else " ") + said + text[end:]

    def _places(self, mapping: MappingNode) -> Iterator[int]:
        """Where new lines may go in a block mapping: at the config's end, after a value, or before the first key."""
        if mapping is self._root:
            yield self._end()
        for key, value in reversed(mapping.value):
            is_alias = value.start_mark.index < key.end_mark.index
            if isinstance(value, ScalarNode) and value.style not in ("|", ">") and not is_alias:
                yield self._next_line(value)
                break
        yield _line_start(mapping.value[0][0])

    def _in_braces(self, mapping: MappingNode, entry: str) -> Iterator[str]:
        """Add an entry at the end of a flow mapping, on its own line if the first entry has its own line."""
        text, closing = self.text, mapping.end_mark.index - 1
        if not mapping.value:
            yield text[:closing] + entry + text[closing:]
            return
        line, last = _line_start(mapping.value[0][0]), mapping.value[-1][1].end_mark.index
        before = text[line : mapping.value[0][0].start_mark.index]
        gap = self._newline() + before if line > 0 and not before.strip() else " "
        comma, comment = _AFTER_ENTRY.match(text, last).groups("")  # type: ignore[union-attr]  # always matches
        comment = comment if gap != " " else ""
        yield text[:last] + (comma or ",") + comment + gap + entry + text[last + len(comma + comment) :]

    def _with_lines(self, index: int, indent: str, names: list[str], said: str) -> str:
        """The text with new lines at this index. If the file has no newline at its end, this stays so."""
        before, after, newline = self.text[:index], self.text[index:], self._newline()
        lines = newline.join(f"{indent}{'  ' * depth}{name}:" for depth, name in enumerate(names)) + f" {said}"
        begins = not before.strip("\ufeff") or before.endswith(("\n", "\r", "\x85", "\u2028", "\u2029"))
        return before + (lines + newline if begins else newline + lines) + after

    def _newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"

    def _end(self) -> int:
        """The end of the document's content: before its ``...`` line, or the end of the text."""
        found = _END_OF_DOCUMENT.search(self.text)
        return found.start() if found else len(self.text)

    def _next_line(self, node: Node) -> int:
        return int(node.end_mark.index) + len("".join(self.text[node.end_mark.index :].splitlines(keepends=True)[:1]))

    def _indent(self, mapping: MappingNode) -> str:
        """The blanks before a new key of a block mapping, so that it is below the first key, even in a list item."""
        before = self.text[_line_start(mapping.value[0][0]) : mapping.value[0][0].start_mark.index]
        return " " * (len(before) - len(before.lstrip(" -")))

    def _spelled(self, value: Scalar, like: Node | None = None) -> str:
        """A value in the style of the old value ``like``: the same quotes, and the same words for booleans."""
        if self._as_json:
            return json.dumps(value, ensure_ascii=False)
        old, style = (like.value, like.style) if isinstance(like, ScalarNode) else ("", None)
        if isinstance(value, str):  # in quotes if YAML needs them
            bare = dumped([value], default_flow_style=True, width=2**31, allow_unicode=True) == f"[{value}]\n"
            value_style = style or (None if bare else '"')
            return dumped(value, default_style=value_style, width=2**31, allow_unicode=True).partition("\n")[0]
        pair = next((pair for pair in _SWITCHES if not style and old.lower() in pair), None)
        if not isinstance(value, bool) or pair is None:
            return dumped(value).partition("\n")[0]
        said = pair[0] if value else pair[1]
        return said.upper() if old.isupper() else said.capitalize() if old[0].isupper() else said


class _Words(ConfigLoader):
    """Reads keys as strings. A value stays a node if it has its own tag or does not fit its type."""

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        """Make the value of a node."""
        try:
            return super().construct_object(node, deep)
        except YAML_FAILURES:
            return node

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping from the entries whose keys are scalars."""
        merged = MappingNode(node.tag, list(node.value), node.start_mark)  # a copy: the node keeps its own entries
        self.flatten_mapping(merged)
        entries = [(key.value, value) for key, value in merged.value if isinstance(key, ScalarNode)]
        return {name: self.construct_object(value, deep) for name, value in entries}


def _json(text: str) -> tuple[Node | None, Any] | None:
    """The root node and the values of a JSON text; None if it is not JSON.

    YAML's parser reads JSON too, except tabs and unprintable characters. These are replaced by blanks.
    """
    with contextlib.suppress(ValueError, RecursionError, yaml.YAMLError):
        tree = json.loads(text.removeprefix("\ufeff"))
        readable = "".join(one if one.isprintable() or one in "\r\n" else " " for one in text)
        return yaml.compose(readable, Loader=ConfigLoader), tree
    return None


def _below(node: Node | None, part: str) -> list[Node]:
    """The values of a key in a mapping (several if the config repeats the key), or an item of a list."""
    if isinstance(node, SequenceNode):
        return [node.value[int(part)]] if holds(node.value, part) else []
    entries = node.value if isinstance(node, MappingNode) else []
    return [value for key, value in entries if isinstance(key, ScalarNode) and key.value == part]


def _line_start(node: Node) -> int:
    return int(node.start_mark.index - node.start_mark.column)
