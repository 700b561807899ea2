"""Mappings of a config that make an object: ``_target_`` of Hydra, ``class_path`` of LightningCLI, ``_component_``.

Their arguments are known from the class: an optimizer's ``fused``, a DataLoader's ``num_workers``, Trainer's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from advisor.export.configs.document import Path, is_interpolation, walk
from advisor.export.configs.words import LOADER_KEYS, PREFETCH, WORKERS, Config, Entry, Phrase, words_of
from advisor.records import ConfigKind, Mode, Value

# Keys that name the class, and the key under which its arguments stand ("" for beside it).
_MAKERS = {"_target_": "", "class_path": "init_args", "_component_": "", "type": ""}
_OPTIMIZERS = frozenset({"Adam", "AdamW", "SGD", "Adagrad", "NAdam", "RAdam", "Adamax"})
_FUSABLE = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
_TRAINERS = ("lightning", "pytorch_lightning", "lightning_fabric")
_ACCELERATORS = ("accelerate.Accelerator", "accelerate.accelerator.Accelerator")
_EVALUATION = ("val", "valid", "validation", "eval", "test", "predict")


def made_by(mapping: Mapping[str, Any]) -> tuple[str, Path]:
    """The class that a mapping makes, and the path of the arguments in it; empty where it makes none."""
    for key, inside in _MAKERS.items():
        name = mapping.get(key)
        if isinstance(name, str) and not is_interpolation(name):
            return name, (inside,) if inside else ()
    return "", ()


def phrases(config: Config) -> Iterator[Phrase]:
    """Phrases for the objects that a config makes: its only Trainer, optimizer and training loader."""
    makers = [(path, node, *made_by(node)) for path, node in walk(config.tree) if isinstance(node, dict)]
    optimizers = [item for item in makers if _is_optimizer(item[1], item[2])]
    if len(optimizers) == 1:
        path, _, name, inside = optimizers[0]
        yield from _of_optimizer(config.settings, (*path, *inside), name.rpartition(".")[2])
    loaders = [
        item for item in makers if item[2].endswith("DataLoader") and _is_for(config.mode, item[0]) and "." in item[2]
    ]
    if len(loaders) == 1:
        path, node, _, inside = loaders[0]
        arguments = node.get("init_args") or {} if inside else node
        yield from _of_loader(config.settings, (*path, *inside), arguments)
    for kind, is_one in ((ConfigKind.LIGHTNING, _is_trainer), (ConfigKind.HUGGINGFACE, _is_arguments)):
        found = [item for item in makers if is_one(item[2])]
        if len(found) == 1:
            path, _, _, inside = found[0]
            yield from words_of(kind)(replace(config, home=(*path, *inside)))
    accelerators = [item for item in makers if item[2] in _ACCELERATORS]
    if len(accelerators) == 1:
        yield from _of_accelerator(config.settings, accelerators[0][0])


def _is_trainer(name: str) -> bool:
    return name.rpartition(".")[2] in ("Trainer", "Fabric") and name.startswith(_TRAINERS)


def _is_arguments(name: str) -> bool:
    return name.startswith("transformers.") and name.endswith("TrainingArguments")


def _is_optimizer(node: Mapping[str, Any], name: str) -> bool:
    """Whether a mapping makes one of PyTorch's own optimizers."""
    module, _, last = name.rpartition(".")
    named_only = not module and ("class_path" in node or "lr" in node)
    return last in _OPTIMIZERS and (module.startswith("torch.optim") or named_only)


def _is_for(mode: Mode, path: Path) -> bool:
    evaluates = any(part in _EVALUATION for name in path for part in name.lower().split("_"))
    return evaluates is (mode is Mode.INFER)


def _of_optimizer(settings: Mapping[str, Value], home: Path, name: str) -> Iterator[Phrase]:
    key = "optimizer.implementation"
    how = settings.get(key)
    if how == "fused" and name in _FUSABLE:
        yield Phrase((key,), (Entry((*home, "fused"), True), Entry((*home, "foreach"), None, only_there=True)))
    elif how in ("foreach", "for-loop"):
        off = Entry((*home, "fused"), False, only_there=True)
        yield Phrase((key,), (Entry((*home, "foreach"), how == "foreach"), off))


def _of_loader(settings: Mapping[str, Value], home: Path, arguments: Mapping[str, Any]) -> Iterator[Phrase]:
    workers = settings.get(WORKERS, arguments.get("num_workers"))
    for key in (*LOADER_KEYS, "data.batch_size", "data.multiprocessing_context"):
        if key in settings:
            value = None if key == PREFETCH and not workers else settings[key]
            yield Phrase((key,), (Entry((*home, key.partition(".")[2]), value, only_there=value is None),))


def _of_accelerator(settings: Mapping[str, Value], home: Path) -> Iterator[Phrase]:
    words = {"bfloat16": "bf16", "float16": "fp16", "none": "no"}
    if settings.get("precision.autocast") in words:
        entry = Entry((*home, "mixed_precision"), words[str(settings["precision.autocast"])])
        yield Phrase(("precision.autocast",), (entry,))
    if "step.accumulate" in settings:
        entry = Entry((*home, "gradient_accumulation_steps"), settings["step.accumulate"])
        yield Phrase(("step.accumulate",), (entry,))
