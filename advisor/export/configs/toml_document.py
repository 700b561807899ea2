"""A TOML config, changed through tomlkit, which keeps comments and layout."""

import re
from collections.abc import Iterator, MutableMapping
from typing import Any

from advisor.export.configs.document import Document, Path, Scalar
from advisor.files.config_file import parsed

_NEWLINE = re.compile(r"(?<!\r)\n")


class TomlDocument(Document):
    """A parsed TOML file. Raises UsageError for a text that is no TOML."""

    has_null = False

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.tree = parsed(text, "the config.toml")

    def texts_with(self, path: Path, value: Scalar) -> Iterator[str]:
        """The text with a value at a path, or without it if that is None: TOML has no null."""
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
        # All lines of a file end alike; tomlkit ends those that it adds with a newline alone.
        is_windows = "\n" in self.text and not _NEWLINE.search(self.text)
        yield _NEWLINE.sub("\r\n" if is_windows else "\n", tomlkit.dumps(document))
