"""Mappings of a config that make an object: ``_target_`` of Hydra, ``class_path`` of LightningCLI, ``_component_``.

Their arguments are known from the class: an optimizer's ``fused``, a DataLoader's ``num_workers``, Trainer's own.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from advisor.export.configs.document import Path, evaluates, is_interpolation, walk
from advisor.export.configs.kinds import has_trainer_arguments
from advisor.export.configs.words import MIXED_PRECISION, Config, Entry, Phrase, loader_options, words_of
from advisor.records import ConfigKind, Mode

# Keys that name the class, and the key under which its arguments stand ("" for beside it).
_MAKERS = {"_target_": "", "class_path": "init_args", "_component_": "", "type": ""}
_OPTIMIZERS = frozenset({"Adam", "AdamW", "SGD", "Adagrad", "NAdam", "RAdam", "Adamax"})
_FUSABLE = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
_TRAINERS = ("lightning", "pytorch_lightning", "lightning_fabric")
_PACKAGES = ("pytorch_lightning", "lightning_fabric", "lightning.fabric")
_ACCELERATORS = ("accelerate.Accelerator", "accelerate.accelerator.Accelerator")


def made_by(mapping: Mapping[str, Any]) -> tuple[str, Path]:
    """The class that a mapping makes, and the path of the arguments in it; empty where it makes none."""
    for key, inside in _MAKERS.items():
        name = mapping.get(key)
        if isinstance(name, str) and not is_interpolation(name):
            return name, (inside,) if inside else ()
    return "", ()


@dataclass(frozen=True, slots=True)
class _Made:
    """An object that a mapping of a config makes: its class, and the config with the path of its arguments."""

    name: str
    path: Path
    mapping: Mapping[str, Any]
    config: Config


def phrases(config: Config) -> Iterator[Phrase]:
    """Phrases for the objects that a config makes: its only Trainer, optimizer and training loader."""
    objects = list(_objects(config))
    for is_one, phrases_of in _PHRASES:
        found = [made for made in objects if is_one(made)]
        if len(found) == 1:
            yield from phrases_of(found[0])


def _objects(config: Config) -> Iterator[_Made]:
    for path, mapping in walk(config.tree):
        if isinstance(mapping, dict):
            name, inside = made_by(mapping)
            yield _Made(name, path, mapping, replace(config, home=(*path, *inside)))


def _is_trainer(made: _Made) -> bool:
    if not made.name and made.path[-1:] == ("trainer",):  # as in NeMo: its arguments, and the script makes it of them
        return has_trainer_arguments(made.mapping)
    return made.name.rpartition(".")[2] in ("Trainer", "Fabric") and made.name.startswith(_TRAINERS)


def _is_arguments(made: _Made) -> bool:
    return made.name.startswith("transformers.") and made.name.endswith("TrainingArguments")


def _is_optimizer(made: _Made) -> bool:
    module, _, last = made.name.rpartition(".")
    named_only = not module and ("class_path" in made.mapping or "lr" in made.mapping)
    return last in _OPTIMIZERS and (module.startswith("torch.optim") or named_only)


def _is_loader(made: _Made) -> bool:
    fits = evaluates(made.path) is (made.config.mode is Mode.INFER)
    return fits and made.name.endswith("DataLoader") and "." in made.name


def _of_optimizer(made: _Made) -> Iterator[Phrase]:
    key, config = "optimizer.implementation", made.config
    how = config.settings.get(key)
    if how == "fused" and made.name.rpartition(".")[2] in _FUSABLE and not _clips_under_lightnings_autocast(config):
        yield Phrase((key,), (config.entry("fused", True), config.off("foreach", None)))
    elif how in ("foreach", "for-loop"):
        yield Phrase((key,), (config.entry("foreach", how == "foreach"), config.off("fused")))


def _clips_under_lightnings_autocast(config: Config) -> bool:
    """Whether a Trainer of Lightning's clips gradients in mixed precision, which it refuses for fused optimizers."""
    autocast = config.settings.get("precision.autocast")
    trainers = [mapping for _, mapping in walk(config.tree) if isinstance(mapping, dict)]
    precisions = [str(trainer.get("precision")) for trainer in trainers if trainer.get("gradient_clip_val")]
    return any(autocast != "none" if autocast else precision.endswith("mixed") for precision in precisions)


def _of_loader(made: _Made) -> Iterator[Phrase]:
    yield from loader_options(made.config, "")
    if made.config.gpus == 1:  # a script may divide it among several
        yield from made.config.said("data.batch_size", "batch_size")


def _of_trainer(made: _Made) -> Iterator[Phrase]:
    """Lightning's words; of a Fabric, which has fewer arguments, those that it takes."""
    for phrase in words_of(ConfigKind.LIGHTNING)(made.config):
        names = {entry.path[len(made.config.home)] for entry in phrase.entries}
        if not made.name.endswith("Fabric") or names <= {"precision", "strategy"}:
            yield replace(phrase, entries=tuple(_as_made(entry, made) for entry in phrase.entries))


def _as_made(entry: Entry, made: _Made) -> Entry:
    """An entry of a class and its arguments as jsonargparse reads them, or as Hydra does where that makes the Trainer.

    The class comes from the Trainer's own package: the two packages of Lightning refuse each other's objects.
    """
    if "_target_" not in made.mapping or "strategy" not in entry.path[:-1]:
        return entry
    path = tuple({"class_path": "_target_"}.get(part, part) for part in entry.path if part != "init_args")
    package = next((name for name in _PACKAGES if made.name.startswith(name)), "lightning.pytorch")
    return Entry(path, f"{package}.strategies.DDPStrategy" if path[-1] == "_target_" else entry.value)


def _of_accelerator(made: _Made) -> Iterator[Phrase]:
    yield from made.config.translated("precision.autocast", MIXED_PRECISION, "mixed_precision")
    yield from made.config.said("step.accumulate", "gradient_accumulation_steps")


_PHRASES: tuple[tuple[Callable[[_Made], bool], Callable[[_Made], Iterator[Phrase]]], ...] = (
    (_is_optimizer, _of_optimizer),
    (_is_loader, _of_loader),
    (_is_trainer, _of_trainer),
    (_is_arguments, lambda made: words_of(ConfigKind.HUGGINGFACE)(made.config)),
    (lambda made: made.name in _ACCELERATORS, _of_accelerator),
)
