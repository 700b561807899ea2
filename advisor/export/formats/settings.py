"""The settings file as a format."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from advisor.export.format import File, Format, Found, Offer
from advisor.records import Exported, Mode

_ENDINGS = (".yaml", ".yml")
_PREPARE = "model, optimizer, loader = tuning.prepare(model, optimizer, loader)"


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
        yield File("Settings", path, lambda: _text(found), found.remark, more=found.launch_lines)

    def to_verify(self, found: Found, path: str) -> Exported | None:
        return Exported(path) if found.runs_alone else None

    def next_steps(self, name: str, found: Found) -> tuple[str, str]:
        applied = "model = tuning.infer(model)" if found.state.mode is Mode.INFER else _PREPARE
        return f'in your script: tuning = advisor.load("{name}")', applied


def _text(found: Found) -> str:
    from advisor.export.settings_file import settings_yaml

    return settings_yaml(found.state, found.settings, target=found.request.target.command)


FORMAT = SettingsFile()
