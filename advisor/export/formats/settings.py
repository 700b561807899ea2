"""The settings file as a format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from advisor.export.format import File, Format, Found, Offer
from advisor.export.in_script import IMPORT, lines_in_script
from advisor.records import Exported

_ENDINGS = (".yaml", ".yml")


class SettingsFile(Format):
    """The settings that won, as a flat YAML mapping."""

    id = "settings"
    option = "--export"
    brief = "YAML"
    order = 20
    applies_settings = True
    offered = Offer("settings", "Settings (YAML)", "tuned.yaml", "yaml", "What advisor.load() applies")

    def takes(self, path: str) -> bool:
        """YAML, also without an ending."""
        return Path(path).suffix.lower() in ("", *_ENDINGS)

    def files(self, found: Found, path: str) -> Iterable[File]:
        more = _how_to_use(Path(path).name, found) if found.settings else ()
        yield File("Settings", path, lambda: _text(found), found.remark, more=(*found.launch_lines, *more))

    def to_verify(self, found: Found, path: str) -> Exported | None:
        return Exported(path) if found.runs_alone else None

    def next_steps(self, name: str, found: Found) -> Sequence[str]:
        first, *rest = (line for line in lines_in_script(name, found.state) if line != IMPORT)
        return f"in your script: {first}", *rest


def _how_to_use(name: str, found: Found) -> tuple[str, ...]:
    return "To use them, in your script:", *(f"  {line}" for line in lines_in_script(name, found.state))


def _text(found: Found) -> str:
    from advisor.export.settings_file import settings_yaml

    return settings_yaml(found.state, found.settings, target=found.request.target.command)


FORMAT = SettingsFile()
