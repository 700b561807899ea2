"""Mappings of a config that make an object: ``_target_`` of Hydra, ``class_path`` of LightningCLI, ``_component_``.

Their arguments are known from the class: an optimizer's ``fused``, a DataLoader's ``num_workers``, Trainer's own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from advisor.export.configs.document import Path, evaluates, is_interpolation, walk
from advisor.export.configs.kinds import has_trainer_arguments
from advisor.export.configs.table import Words, table
from advisor.export.configs.words import Config, Entry, Phrase, words_of
from advisor.records import ConfigKind, Mode, Value

# Keys that name the class, and the key under which its arguments stand ("" for beside it).
_MAKERS = {"_target_": "", "class_path": "init_args", "_component_": "", "type": ""}
_FUSABLE = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
_OPTIMIZERS = _FUSABLE | {"NAdam", "RAdam", "Adamax"}
_LIGHTNINGS = ("lightning", "pytorch_lightning", "lightning_fabric")
_PACKAGES = ("pytorch_lightning", "lightning_fabric", "lightning.fabric")


@dataclass(frozen=True, slots=True)
class _Made:
    """An object that a mapping of a config makes: its class, and the config with the path of its arguments."""

    name: str
    path: Path
    mapping: Mapping[str, Any]
    config: Config

    @property
    def kind(self) -> str:
        """``trainer``, ``arguments``, ``optimizer``, ``loader`` or ``accelerator``; empty for other objects."""
        package, _, last = self.name.rpartition(".")
        named_only = not package and ("class_path" in self.mapping or "lr" in self.mapping)
        # As in NeMo: arguments of which the script makes the Trainer.
        bare_trainer = not self.name and self.path[-1:] == ("trainer",) and has_trainer_arguments(self.mapping)
        if bare_trainer or (last in ("Trainer", "Fabric") and package.startswith(_LIGHTNINGS)):
            return "trainer"
        if package.startswith("transformers") and last.endswith("TrainingArguments"):
            return "arguments"
        if last in _OPTIMIZERS and (package.startswith("torch.optim") or named_only):
            return "optimizer"
        if package and last.endswith("DataLoader") and evaluates(self.path) is (self.config.mode is Mode.INFER):
            return "loader"
        return "accelerator" if package.startswith("accelerate") and last == "Accelerator" else ""


def phrases(config: Config) -> Iterator[Phrase]:
    """Phrases for the objects that a config makes: its only Trainer, optimizer and training loader."""
    objects = []
    for path, mapping in walk(config.tree):
        if isinstance(mapping, dict):
            named = (key for key in _MAKERS if isinstance(mapping.get(key), str) and not is_interpolation(mapping[key]))
            key = next(named, "")
            home = (*path, _MAKERS[key]) if _MAKERS.get(key) else path
            objects.append(_Made(mapping[key] if key else "", path, mapping, replace(config, home=home)))
    kinds = [made.kind for made in objects]
    for made, kind in zip(objects, kinds, strict=True):
        if kind and kinds.count(kind) == 1:
            yield from _phrases_of(made, kind)


def _phrases_of(made: _Made, kind: str) -> Iterator[Phrase]:
    config = made.config
    match kind:
        case "optimizer":
            fuses = made.name.rpartition(".")[2] in _FUSABLE and not _clips_under_lightnings_autocast(config)
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
                if not made.name.endswith("Fabric") or names <= {"precision", "strategy"}:  # a Fabric takes no others
                    yield replace(phrase, entries=tuple(_as_made(entry, made) for entry in phrase.entries))
        case "arguments":
            yield from words_of(ConfigKind.HUGGINGFACE, config)
        case "accelerator":
            precisions = table().programs[ConfigKind.ACCELERATE].rules["precision.autocast"]
            accumulates = "gradient_accumulation_steps"
            yield from config.by({"precision.autocast": precisions, "step.accumulate": accumulates})


def _clips_under_lightnings_autocast(config: Config) -> bool:
    """Whether Lightning's Trainer clips gradients in mixed precision, which it refuses for fused optimizers."""
    autocast = config.settings.get("precision.autocast")
    trainers = [mapping for _, mapping in walk(config.tree) if isinstance(mapping, dict)]
    precisions = [str(trainer.get("precision")) for trainer in trainers if trainer.get("gradient_clip_val")]
    return any(autocast != "none" if autocast else precision.endswith("mixed") for precision in precisions)


def _as_made(entry: Entry, made: _Made) -> Entry:
    """An entry of a class and its arguments as jsonargparse reads them, or as Hydra does where that makes the Trainer.

    The class comes from the Trainer's own package: the two packages of Lightning refuse each other's objects.
    """
    if "_target_" not in made.mapping or "strategy" not in entry.path[:-1]:
        return entry
    path = tuple({"class_path": "_target_"}.get(part, part) for part in entry.path if part != "init_args")
    package = next((name for name in _PACKAGES if made.name.startswith(name)), "lightning.pytorch")
    return Entry(path, f"{package}.strategies.DDPStrategy" if path[-1] == "_target_" else entry.value)
