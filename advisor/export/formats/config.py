"""The user's own config with the settings. Settings that do not fit go into a settings file beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.errors import UsageError
from advisor.experiment.request import Outputs
from advisor.export.files import check_target_of
from advisor.export.format import File, Format, Found, Offer
from advisor.export.formats.settings import lines_in_script
from advisor.records import ConfigKind, Exported, Mode, TargetSpec

if TYPE_CHECKING:
    from advisor.export.config_patch import Patch
    from advisor.export.configs.words import Wanted

_REST_NAME = "tuned.yaml"
_MADE_BY_US = "# Made by perf-advisor"
_PROGRAMS: Mapping[ConfigKind, str] = {
    ConfigKind.HUGGINGFACE: "Hugging Face TrainingArguments",
    ConfigKind.LIGHTNING: "Lightning's Trainer",
    ConfigKind.ACCELERATE: "Accelerate",
    ConfigKind.TIMM: "timm's train.py",
    ConfigKind.ULTRALYTICS: "Ultralytics",
    ConfigKind.HYDRA: "Hydra",
}
_TRAINERS: Mapping[ConfigKind, str] = {ConfigKind.HUGGINGFACE: "transformers", ConfigKind.LIGHTNING: "lightning"}


class PatchedConfig(Format):
    """The winning settings in a copy of the user's config; settings that do not fit are in a settings file."""

    option = "--export"
    brief = "your --config file patched"
    order = 10

    def offer(self, outputs: Outputs) -> Offer | None:
        if outputs.config_path is None:
            return None
        path = Path(outputs.config_path)
        about = "A copy of your config with the settings in it"
        return Offer(self.id, f"{path.name}, patched", f"{path.stem}.tuned{path.suffix}", "diff", about)

    def serves(self, outputs: Outputs, path: str) -> bool:
        return outputs.config_path is not None

    def files(self, found: Found, path: str) -> Iterable[File]:
        """The patched config, and a settings file for settings that do not fit. The user's config is not changed."""
        from advisor.export.settings_file import settings_yaml

        (patch, rest), name = _patched(found, Path(path)), Path(path).name
        yield File("Patched config", path, lambda: patch.text, found.remark, tuple(_sentences(found, patch, name)))
        if rest:
            target = found.request.target.command
            text = lambda: settings_yaml(found.state, patch.rest, target=target, beside=name)  # noqa: E731
            yield File("Other settings", str(rest), text, more=tuple(_code(found, patch, rest)))

    def preview(self, found: Found) -> str:
        """A unified diff against the user's config, and remarks."""
        from advisor.export.config_patch import diff
        from advisor.files.config_file import read_text

        offered, config = self.offer(found.outputs), found.outputs.config_path or ""
        path = Path(offered.default_name if offered else config)
        patch, rest = _patched(found, path)
        changes = diff(read_text(config), patch.text, Path(config).name)
        beside = (f"The other settings go to {rest}.",) if rest else ()
        lines = (*_sentences(found, patch, path.name), *beside, *_code(found, patch, rest))
        said = "".join(f"{line}\n" for line in lines)
        return (changes or "Nothing would change in the config.\n") + (f"\n{said}" if said else "")

    def to_verify(self, found: Found, path: str) -> Exported | None:
        """The config's section ``perf_advisor``. The other settings are applied by the user's program: not verified."""
        from advisor.files.config_file import read_config

        return Exported(path, read_config(path)) if _patched(found, Path(path))[0].added else None

    def next_steps(self, name: str, found: Found) -> tuple[str, str]:
        return f"run your training with {name} instead of your config", "only the lines in the diff differ"


def _patched(found: Found, path: Path) -> tuple[Patch, Path | None]:
    """The patched config for ``path``, and the path for the settings that do not fit (None if all fit)."""
    from advisor.export.config_patch import patched
    from advisor.files.config_file import read_text

    config = found.outputs.config_path or ""
    patch = patched(read_text(config), _wanted(found), name=config, kind=found.outputs.config_kind)
    return patch, _rest_path(path, found.request.target) if patch.rest else None


def _sentences(found: Found, patch: Patch, name: str) -> Iterator[str]:
    """Sentences on the entry of each setting, and on the kind of config if the user did not give it."""
    if patch.kind in _PROGRAMS and found.outputs.config_kind is None:
        yield f"  recognised as a config of {_PROGRAMS[patch.kind]}; if this is wrong, give --config-kind"
    for key, entries in patch.said.items():
        yield f"  {key} -> {', '.join(map(str, entries)) or f'{_PROGRAMS[patch.kind]} does that anyway'}"
    for remark in patch.remarks:
        yield f"  not written: {remark}"
    if patch.added:
        yield f'  in its section perf_advisor, which advisor.load("{name}") applies: {", ".join(patch.added)}'
    if patch.rest:
        reader = _PROGRAMS.get(patch.kind, "the program that reads it")
        yield f"{reader} has no option for these settings: {', '.join(patch.rest)}."


def _code(found: Found, patch: Patch, rest: Path | None) -> Iterator[str]:
    """Lines on how to apply the other settings, and how to start a loop on several GPUs."""
    if rest is not None:
        yield "Apply them in your code:"
        yield from (f"  {line}" for line in lines_in_script(rest.name, found, _TRAINERS.get(patch.kind, "")))
    yield from found.launch_lines


def _wanted(found: Found) -> Wanted:
    from advisor.export.configs.words import LOADER_KEYS, Wanted
    from advisor.report.several_gpus import gpus_to_start

    state, settings = found.state, found.settings
    facts = state.facts.workload if state.facts else None
    current = facts.current if facts else {}
    for recipe, value in found.catalog.in_order(settings):
        settings = {**recipe.implies.get(value, {}), **settings}
    loads = any(key in settings for key in LOADER_KEYS)
    along = {key: current[key] for key in LOADER_KEYS if loads and key in current}
    mode, on_cpu = (facts.mode, facts.device_type == "cpu") if facts else (Mode.TRAIN, False)
    gpus = gpus_to_start(state, settings)
    machines = state.scaling.machines if state.scaling and gpus > 1 else 1
    return Wanted(settings, current, found.outputs.key_map, along, mode, on_cpu, gpus, machines)


def _rest_path(export: Path, target: TargetSpec) -> Path:
    """``tuned.yaml`` beside the config; another name if the config or a file that must stay has this name.

    An existing file is replaced only if we wrote it for the same target.
    """
    path = export.with_name(_REST_NAME)
    with contextlib.suppress(OSError, ValueError, UsageError):  # an unreadable file is not ours
        if path != export and (not path.exists() or path.read_text(encoding="utf-8").startswith(_MADE_BY_US)):
            check_target_of(path, target, "")
            return path
    return export.with_name(f"{export.stem}.settings.yaml")
