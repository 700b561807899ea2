"""A TOML config, changed through tomlkit, which keeps comments and layout."""

import re
import tomllib
from collections.abc import MutableMapping
from typing import Any

from advisor.errors import UsageError
from advisor.export.configs.document import Path, Scalar, is_index, is_interpolation, same_value
from advisor.files.config_file import parsed

_NEWLINE = re.compile(r"(?<!\r)\n")


class TomlDocument:
    """A parsed TOML file. Raises UsageError for a text that is none, or that tomlkit would write differently."""

    def __init__(self, text: str) -> None:
        import tomlkit
        from tomlkit.exceptions import TOMLKitError

        # All lines of a file end alike; tomlkit ends those that it adds with a newline alone.
        self._newline = "\r\n" if "\n" in text and not _NEWLINE.search(text) else "\n"
        self.tree: dict[str, Any] = parsed(text, "the config.toml")
        try:
            self._document: Any = tomlkit.parse(text)
        except (TOMLKitError, ValueError, LookupError, RecursionError):
            self._document = None
        if self._document is None or tomlkit.dumps(self._document) != text:
            raise UsageError(
                "the config's TOML cannot be changed without changing its layout.",
                "Export without --config, and load that file beside your config.",
            )

    def obstacle(self, path: Path) -> str:
        """The reason why a path can hold no value; empty where it can."""
        node: Any = self.tree
        for place, part in enumerate(path):
            name = repr(".".join(path[:place]))
            if isinstance(node, list):
                if not is_index(part) or int(part) >= len(node):
                    return f"{name} is a list"
                node = node[int(part)]
            elif not isinstance(node, dict):
                return f"{name} is a value, not a table"
            elif part not in node:
                return ""
            else:
                node = node[part]
        name = repr(".".join(path))
        if isinstance(node, dict | list):
            return f"{name} is a {'table' if isinstance(node, dict) else 'list'}, not a value"
        return f"{name} is computed: `{node}`" if is_interpolation(node) else ""

    def replace_or_add(self, path: Path, value: Scalar) -> None:
        """Put a value at a path where there is no obstacle. None removes it: TOML has no null."""
        node: Any = self._document
        for part in path[:-1]:
            if isinstance(node, MutableMapping) and part not in node:
                node[part] = {}
            node = node[int(part)] if isinstance(node, list) else node[part]
        if value is None:
            if path[-1] in node:
                del node[path[-1]]
        elif path[-1] not in node or not same_value(node[path[-1]], value):
            node[path[-1]] = value

    def text(self) -> str:
        """The text with all changes."""
        import tomlkit

        text = _NEWLINE.sub(self._newline, tomlkit.dumps(self._document))
        try:
            tomllib.loads(text)
        except ValueError as error:
            raise UsageError(
                "the config's layout leaves no room for the settings.",
                "Export without --config, and load that file beside your config.",
            ) from error
        return text
