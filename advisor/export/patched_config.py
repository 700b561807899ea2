"""A session's settings in the user's own config: the patch, the file for the rest, and remarks for the person."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from advisor.experiment.outputs import Outputs
from advisor.experiment.state import SessionState
from advisor.export.config_patch import Patch, Wanted, patched
from advisor.export.configs.words import LOADER_KEYS
from advisor.export.formats.settings import lines_in_script
from advisor.files.config_file import read_text
from advisor.recipe.catalog import Catalog
from advisor.recipe.settings import SECTION
from advisor.records import ConfigKind, Mode, Value
from advisor.report.several_gpus import gpus_to_start, launch_lines

REST_NAME = "tuned.yaml"
_MADE_BY_US = "# Made by perf-advisor"
_PROGRAMS: Mapping[ConfigKind, str] = {
    ConfigKind.HUGGINGFACE: "Hugging Face TrainingArguments",
    ConfigKind.LIGHTNING: "Lightning's Trainer",
    ConfigKind.ACCELERATE: "Accelerate",
    ConfigKind.TIMM: "timm's train.py",
    ConfigKind.ULTRALYTICS: "Ultralytics",
    ConfigKind.HYDRA: "Hydra",
}
_CALLBACKS: Mapping[ConfigKind, tuple[str, str]] = {
    ConfigKind.HUGGINGFACE: ("transformers", "trainer.add_callback({})"),
    ConfigKind.LIGHTNING: ("lightning", "trainer = Trainer(callbacks=[{}])"),
}


@dataclass(frozen=True, slots=True)
class ExportedConfig:
    """A patched config. ``rest_path``: the settings file for what it has no place for, None where there is no rest.

    ``sentences`` say what went where, ``code`` how the rest is applied.
    """

    patch: Patch
    rest_path: Path | None
    sentences: tuple[str, ...]
    code: tuple[str, ...]


def patched_for(
    state: SessionState, settings: Mapping[str, Value], outputs: Outputs, catalog: Catalog, path: Path
) -> ExportedConfig:
    """The user's config with these settings in it, for a file of this path. Raises UsageError."""
    config = outputs.config_path or ""
    wanted = _wanted(state, settings, outputs, catalog)
    patch = patched(read_text(config), wanted, name=config, kind=outputs.config_kind)
    rest_path = _rest_path(path) if patch.rest else None
    sentences = tuple(_sentences(patch, path, said=outputs.config_kind is not None))
    code = (*_code(patch, rest_path, state), *launch_lines(state, settings))
    return ExportedConfig(patch, rest_path, sentences, code)


def _wanted(state: SessionState, settings: Mapping[str, Value], outputs: Outputs, catalog: Catalog) -> Wanted:
    facts = state.facts.workload if state.facts else None
    current = facts.current if facts else {}
    implied = {recipe.key: recipe.implies(value) for recipe, value in catalog.in_order(settings)}
    loads = any(key in settings for key in LOADER_KEYS)
    along = {key: current[key] for key in LOADER_KEYS if loads and key in current}
    mode, on_cpu = (facts.mode, facts.device_type == "cpu") if facts else (Mode.TRAIN, False)
    gpus = gpus_to_start(state, settings)
    machines = state.scaling.machines if state.scaling and gpus > 1 else 1
    return Wanted(settings, current, outputs.key_map, implied, along, mode, on_cpu, gpus, machines)


def _rest_path(export: Path) -> Path:
    """``tuned.yaml`` beside the config; another name where that is the config's, or a file that we did not make."""
    path = export.with_name(REST_NAME)
    own = export.with_name(f"{export.stem}.settings.yaml")
    if path == export:
        return own
    try:
        taken = path.exists() and not path.read_text(encoding="utf-8").startswith(_MADE_BY_US)
    except (OSError, ValueError):
        taken = True
    return own if taken else path


def _sentences(patch: Patch, path: Path, *, said: bool) -> Iterator[str]:
    """Sentences on where each setting was written, and on the kind of config unless the person ``said`` it."""
    if patch.kind in _PROGRAMS and not said:
        yield f"  recognised as a config of {_PROGRAMS[patch.kind]}; --config-kind says otherwise"
    for key in patch.said:
        yield f"  {key} -> {patch.said[key] or f'{_PROGRAMS[patch.kind]} does that anyway'}"
    for remark in patch.remarks:
        yield f"  not written: {remark}"
    if patch.added:
        names = ", ".join(patch.added)
        yield f'  in its section {SECTION}, which advisor.load("{path.name}") applies: {names}'
    if patch.rest:
        reader = _PROGRAMS.get(patch.kind, "the program that reads it")
        yield f"{reader} has no place for these: {', '.join(patch.rest)}."


def _code(patch: Patch, path: Path | None, state: SessionState) -> Iterator[str]:
    if path is None:
        return
    yield "Apply it in your code:"
    lines = lines_in_script(path.name, state)
    if patch.kind in _CALLBACKS:
        library, line = _CALLBACKS[patch.kind]
        lines = f"from advisor.{library} import TunedCallback", line.format(f"TunedCallback({path.name!r})")
    yield from (f"  {line}" for line in lines)
