"""The user's own config, patched, as a format."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.experiment.outputs import Outputs
from advisor.export.format import File, Format, Found, Offer
from advisor.records import Exported

if TYPE_CHECKING:
    from advisor.export.patched_config import ExportedConfig


class PatchedConfig(Format):
    """The winning settings in a copy of the user's config; those without a place there in a settings file."""

    option = "--export"
    brief = "your --config file patched"
    order = 10
    applies_settings = True

    def offer(self, outputs: Outputs) -> Offer | None:
        if outputs.config_path is None:
            return None
        path = Path(outputs.config_path)
        about = "A copy of your config with the settings in it"
        return Offer(self.id, f"{path.name}, patched", f"{path.stem}.tuned{path.suffix}", "diff", about)

    def serves(self, outputs: Outputs, path: str) -> bool:
        return outputs.config_path is not None

    def files(self, found: Found, path: str) -> Iterable[File]:
        """The patched config, and a settings file for what has no place in it. The user's own file is kept."""
        from advisor.export.settings_file import settings_yaml

        exported, name = _patched(found, path), Path(path).name
        yield File("Patched config", path, lambda: exported.patch.text, found.remark, more=exported.sentences)
        if exported.rest_path:
            target, rest = found.request.target.command, exported.patch.rest
            text = lambda: settings_yaml(found.state, rest, target=target, beside=name)  # noqa: E731
            yield File("The rest", str(exported.rest_path), text, more=exported.code)

    def preview(self, found: Found) -> str:
        """A unified diff against the user's file, and what is said of the patch."""
        from advisor.export.config_patch import diff
        from advisor.files.config_file import read_text

        offered, config = self.offer(found.outputs), found.outputs.config_path or ""
        exported = _patched(found, offered.default_name if offered else config)
        changes = diff(read_text(config), exported.patch.text, Path(config).name)
        beside = (f"The rest goes to {exported.rest_path}.",) if exported.rest_path else ()
        said = "".join(f"{line}\n" for line in (*exported.sentences, *beside, *exported.code))
        return (changes or "Nothing would change in the config.\n") + (f"\n{said}" if said else "")

    def to_verify(self, found: Found, path: str) -> Exported | None:
        """The config's own section of settings, which can be verified; the rest of it is applied by its program."""
        from advisor.files.config_file import read_config

        return Exported(path, read_config(path)) if found.runs_alone and _patched(found, path).patch.added else None

    def next_steps(self, name: str, found: Found) -> tuple[str, str]:
        return f"run your training with {name} in place of your config", "only the lines of the diff above differ"


def _patched(found: Found, path: str) -> ExportedConfig:
    from advisor.export.patched_config import patched_for

    return patched_for(found.state, found.settings, found.outputs, found.catalog, Path(path))
