"""Mappings of a config that make an object: ``_target_`` of Hydra, ``class_path`` of LightningCLI, ``_component_``.

Their arguments are known from the class: an optimizer's ``fused``, a DataLoader's ``num_workers``, Trainer's own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from advisor.export.configs.document import Path, evaluates, is_interpolation, walk
from advisor.export.configs.kinds import ENOUGH, Words, names_of, table
from advisor.export.configs.words import Entry, Phrase, Wanted, words_of
from advisor.records import ConfigKind, Mode, Value

# Keys that name the class, and the key under which its arguments stand ("" for beside it).
_MAKERS = {"_target_": "", "class_path": "init_args", "_component_": "", "type": ""}
_FUSABLE = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
_OPTIMIZERS = _FUSABLE | {"NAdam", "RAdam", "Adamax"}
_LIGHTNINGS = ("lightning", "pytorch_lightning", "lightning_fabric")
_PACKAGES = ("pytorch_lightning", "lightning_fabric", "lightning.fabric")


def phrases(config: Wanted) -> Iterator[Phrase]:
    """Phrases for the objects that a config makes: its only Trainer, optimizer and training loader."""
    made = list[tuple[str, str, Mapping[str, Any], Wanted]]()
    for path, mapping in walk(config.tree):
        if isinstance(mapping, dict):
            named = (key for key in _MAKERS if isinstance(mapping.get(key), str) and not is_interpolation(mapping[key]))
            key = next(named, "")
            name = mapping[key] if key else ""
            home = (*path, _MAKERS[key]) if _MAKERS.get(key) else path
            made.append((_kind_of(name, path, mapping, config.mode), name, mapping, replace(config, home=home)))
    kinds = [kind for kind, *_ in made]
    for kind, name, mapping, inside in made:
        if kind and kinds.count(kind) == 1:
            yield from _phrases_of(kind, name, mapping, inside)


def _kind_of(name: str, path: Path, mapping: Mapping[str, Any], mode: Mode) -> str:
    """The kind of an object by its class: empty for one that no setting concerns."""
    package, _, last = name.rpartition(".")
    named_only = not package and ("class_path" in mapping or "lr" in mapping)
    # As in NeMo: arguments of which the script makes the Trainer.
    bare_trainer = not name and path[-1:] == ("trainer",) and names_of(ConfigKind.LIGHTNING, mapping) >= ENOUGH
    if bare_trainer or (last in ("Trainer", "Fabric") and package.startswith(_LIGHTNINGS)):
        return "trainer"
    if package.startswith("transformers") and last.endswith("TrainingArguments"):
        return "arguments"
    if last in _OPTIMIZERS and (package.startswith("torch.optim") or named_only):
        return "optimizer"
    if package and last.endswith("DataLoader") and evaluates(path) is (mode is Mode.INFER):
        return "loader"
    return "accelerator" if package.startswith("accelerate") and last == "Accelerator" else ""


def _phrases_of(kind: str, name: str, mapping: Mapping[str, Any], config: Wanted) -> Iterator[Phrase]:
    match kind:
        case "optimizer":
            fuses = name.rpartition(".")[2] in _FUSABLE and not _clips_under_lightnings_autocast(config)
            words: dict[Value, Words] = {"fused": {"fused": True, "foreach?": None}} if fuses else {}
            words |= {how: {"foreach": how == "foreach", "fused?": False} for how in ("foreach", "for-loop")}
            yield from config.by({"optimizer.implementation": words})
        case "loader":
            yield from config.loader_options()
            if config.gpus == 1:  # a script may divide it among several
                yield from config.by({"data.batch_size": "batch_size"})
        case "trainer":
            for phrase in words_of(ConfigKind.LIGHTNING, config):
                names = {entry.path[len(config.home)] for entry in phrase.entries}
                if name.endswith("Fabric") and not names <= {"precision", "strategy"}:
                    continue  # it takes no others
                made_by_hydra = name if "_target_" in mapping else ""
                yield replace(phrase, entries=tuple(_as_made(entry, made_by_hydra) for entry in phrase.entries))
        case "arguments":
            yield from words_of(ConfigKind.HUGGINGFACE, config)
        case "accelerator":
            precisions = table().programs[ConfigKind.ACCELERATE].rules["precision.autocast"]
            accumulates = "gradient_accumulation_steps"
            yield from config.by({"precision.autocast": precisions, "step.accumulate": accumulates})


def _clips_under_lightnings_autocast(config: Wanted) -> bool:
    """Whether Lightning's Trainer clips gradients in mixed precision, which it refuses for fused optimizers."""
    autocast = config.settings.get("precision.autocast")
    trainers = [mapping for _, mapping in walk(config.tree) if isinstance(mapping, dict)]
    precisions = [str(trainer.get("precision")) for trainer in trainers if trainer.get("gradient_clip_val")]
    return any(autocast != "none" if autocast else precision.endswith("mixed") for precision in precisions)


def _as_made(entry: Entry, trainer: str) -> Entry:
    """An entry of a class and its arguments as jsonargparse reads them, or as Hydra does where that makes the Trainer.

    The class comes from the Trainer's own package: the two packages of Lightning refuse each other's objects.
    """
    if not trainer or "strategy" not in entry.path[:-1]:
        return entry
    path = tuple({"class_path": "_target_"}.get(part, part) for part in entry.path if part != "init_args")
    package = next((name for name in _PACKAGES if trainer.startswith(name)), "lightning.pytorch")
    return Entry(path, f"{package}.strategies.DDPStrategy" if path[-1] == "_target_" else entry.value)
