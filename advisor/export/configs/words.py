"""Settings in the words of frameworks, by the table of words or by rules that depend on other values.

A config may also contain mappings that make objects (Hydra's ``_target_``, LightningCLI's ``class_path``,
``_component_``). Their class decides the arguments: an optimizer's ``fused`` or a DataLoader's ``num_workers``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from advisor.export.configs.document import Entry, Path, at, evaluates, holds, is_interpolation, walk
from advisor.export.configs.kinds import ENOUGH, Rules, Words, names_classes, names_of, table
from advisor.python.step import OF_DDP
from advisor.records import ConfigKind, Mode, Value

LOADER_KEYS = ("data.num_workers", "data.pin_memory", "data.persistent_workers", "data.prefetch_factor")
WORKERS, PIN, PERSISTENT, PREFETCH = LOADER_KEYS


@dataclass(frozen=True, slots=True)
class Phrase:
    """Settings that some entries express together. Without entries, they are the framework's default."""

    keys: tuple[str, ...]
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings to write into a config, the facts of the measured loop, and the config's content."""

    settings: Mapping[str, Value]
    # The loop's present values: a word that is found by its name is replaced only if it means the present value.
    current: Mapping[str, Value] = field(default_factory=dict)
    key_map: Mapping[str, str] = field(default_factory=dict)
    along: Mapping[str, Value] = field(default_factory=dict)  # unchanged loader settings, written if they have an entry
    mode: Mode = Mode.TRAIN
    on_cpu: bool = False  # the loop was measured on a CPU
    gpus: int = 1  # the number of GPUs of all machines together
    machines: int = 1
    tree: Mapping[str, Any] = field(default_factory=dict)
    home: Path = ()  # the path of the mapping with the program's arguments

    def get(self, *path: str) -> Any:
        """The config's value for a key of the framework; None if the key is missing."""
        return at(self.tree, (*self.home, *path))

    def has(self, name: str) -> bool:
        """Whether the config has a key of the framework, with any value."""
        return holds(at(self.tree, self.home), name)

    def say(self, keys: str | tuple[str, ...], words: Words) -> Iterator[Phrase]:
        """A phrase with the entries for some settings; nothing if a required entry is missing."""
        entries, missing = [], False
        for name, word in words.items():
            path = name.rstrip("?!").split(".")
            missing |= name.endswith("!") and not self.get(*path)
            entries.append(Entry((*self.home, *path), word, only_there=name.endswith(("?", "!"))))
        if not missing:
            yield Phrase((keys,) if isinstance(keys, str) else keys, tuple(entries))

    def by(self, rules: Rules) -> Iterator[Phrase]:
        """Phrases for the settings that these rules can express, in the order of the rules."""
        for key, rule in rules.items():
            if key in self.settings:
                value = self.settings[key]
                words = {rule: value} if isinstance(rule, str) else rule.get(value, rule.get("*"))
                if words is not None:
                    yield from self.say(key, {name: value if word == "*" else word for name, word in words.items()})

    def batch_per_gpu(self, name: str) -> Iterator[Phrase]:
        """The phrase for the batch size, under a key for the samples on one GPU."""
        size = self.settings.get("data.batch_size")
        if isinstance(size, int) and size % self.gpus == 0:
            yield from self.say("data.batch_size", {name: size // self.gpus})

    def loader_options(self, prefix: str = "") -> Iterator[Phrase]:
        """Phrases for the options of a DataLoader; the names of the options get this prefix."""
        workers = self.settings.get(WORKERS, self.get(f"{prefix}num_workers"))
        # A loader without workers refuses prefetch_factor.
        names = {key: prefix + key.partition(".")[2] for key in LOADER_KEYS if workers or key != PREFETCH}
        yield from self.by(names)


def words_of(kind: ConfigKind, config: Wanted) -> Iterator[Phrase]:
    """The phrases for the settings in a config of this kind; none if the kind has no names for settings."""
    if kind in _SAY:
        yield from _SAY[kind](config)


def _checkpointing(switch: str) -> Rules:
    """The words for activation checkpointing, a boolean in configs."""
    return {"memory.activation_checkpointing": {"none": {switch: False}, "blocks": {switch: True}}}


# --- Hugging Face TrainingArguments -----------------------------------------------------------------------------

# The Trainer's arguments that Axolotl ignores silently, and a compile mode that it refuses.
_NOT_AXOLOTL = {"dataloader_persistent_workers", "use_cpu", "fsdp", "fsdp_config"}
_NOT_AXOLOTL_MODE = "max-autotune-no-cudagraphs"
_IN_DEEPSPEED = {
    "bf16": ("bf16", "enabled"),
    "fp16": ("fp16", "enabled"),
    "per_device_train_batch_size": ("train_micro_batch_size_per_gpu",),
    "gradient_accumulation_steps": ("gradient_accumulation_steps",),
}


def _huggingface(config: Wanted) -> Iterator[Phrase]:
    """The phrases for ``transformers.TrainingArguments``, and for configs that share its names (Axolotl's)."""
    axolotl = config.has("base_model") and config.has("micro_batch_size")
    for phrase in _training_arguments(config):
        written = [entry for entry in phrase.entries if not entry.only_there]
        refused = any(_NOT_AXOLOTL & {*one.path} or one.value == _NOT_AXOLOTL_MODE for one in written)
        if not axolotl or not refused:
            # DeepSpeed's own section must have the same values, or `auto`.
            pairs = [(("deepspeed", *_IN_DEEPSPEED.get(one.path[-1], ("",))), one.value) for one in phrase.entries]
            inside = (Entry((*config.home, *path), word) for path, word in pairs if isinstance(config.get(*path), int))
            yield replace(phrase, entries=(*phrase.entries, *inside))


def _training_arguments(config: Wanted) -> Iterator[Phrase]:
    """The phrases for TrainingArguments."""
    dtype = config.settings.get("precision.autocast")
    switches = {"bf16": dtype == "bfloat16", "fp16": dtype == "float16", "pure_bf16": False}  # pure_: LLaMA-Factory
    words = {name if on else f"{name}?": on for name, on in switches.items()}
    if dtype in ("bfloat16", "float16") and config.on_cpu:
        words["use_cpu"] = True  # otherwise transformers refuses mixed precision without a GPU
    if dtype is not None:
        yield from config.say("precision.autocast", words)
    yield from _optimizer_of_trainer(config)
    batch = "per_device_train_batch_size" if config.mode is Mode.TRAIN else "per_device_eval_batch_size"
    if config.mode is Mode.TRAIN and config.has("micro_batch_size") and not config.has(batch):
        batch = "micro_batch_size"
    yield from config.batch_per_gpu(batch)
    saved = "activation_checkpointing" if config.has("activation_checkpointing") else "gradient_checkpointing"
    yield from config.by(_checkpointing(saved))
    yield from config.by(table().programs[ConfigKind.HUGGINGFACE].rules)
    yield from config.loader_options("dataloader_")


def _optimizer_of_trainer(config: Wanted) -> Iterator[Phrase]:
    name = "optimizer" if config.has("optimizer") and not config.has("optim") else "optim"
    if config.get(name) not in ("adamw_torch", "adamw_torch_fused", "adamw_hf", None):
        return
    state, how = config.settings.get("optimizer.state"), config.settings.get("optimizer.implementation")
    if word := {"8-bit": "adamw_torch_8bit", "adafactor": "adafactor"}.get(str(state)):
        keys = ("optimizer.state",) if how is None else ("optimizer.state", "optimizer.implementation")
        yield from config.say(keys, {name: word})
    elif word := {"fused": "adamw_torch_fused", "foreach": "adamw_torch"}.get(str(how)):
        yield from config.say("optimizer.implementation", {name: word})


# --- Lightning --------------------------------------------------------------------------------------------------

_DDP_STRATEGY = "lightning.pytorch.strategies.DDPStrategy"


def _lightning(config: Wanted) -> Iterator[Phrase]:
    """The phrases for the arguments of Lightning's ``Trainer``."""
    autocast, weights = (config.settings.get(f"precision.{name}") for name in ("autocast", "weights"))
    half = {"bfloat16": "bf16", "float16": "16"}
    keys = tuple(key for key in ("precision.weights", "precision.autocast") if key in config.settings)
    if weights in half and autocast in (None, "none", weights):
        yield from config.say(keys, {"precision": f"{half[str(weights)]}-true"})
    elif autocast is not None and weights in (None, "float32"):
        yield from config.say(keys, {"precision": f"{half[str(autocast)]}-mixed" if autocast in half else "32-true"})
    yield from config.by(table().programs[ConfigKind.LIGHTNING].rules)
    if config.settings.get("debug.switches") == "none" and (config.get("detect_anomaly") or config.get("profiler")):
        yield from config.say("debug.switches", {"detect_anomaly?": False, "profiler?": None})
    # Without these, the script passes the config's values to the Trainer, and no object is made from the config.
    makes_objects = names_classes(config.tree) or "seed_everything" in config.tree or config.has("_target_")
    given = [name for name in OF_DDP if f"parallel.{name}" in config.settings and makes_objects]
    if config.settings.get("parallel.strategy") == "ddp" and given:
        yield from config.say("parallel.strategy", {"strategy.class_path": _DDP_STRATEGY})
        yield from config.by({f"parallel.{name}": f"strategy.init_args.{name}" for name in given})
    else:
        yield from config.by({"parallel.strategy": {"ddp": {"strategy": "ddp"}}})


# --- Accelerate -------------------------------------------------------------------------------------------------


def _accelerate(config: Wanted) -> Iterator[Phrase]:
    """The phrases for the file that ``accelerate config`` writes."""
    left_out = set[str]()
    if config.get("deepspeed_config", "deepspeed_config_file"):  # Accelerate refuses both together
        left_out.add("precision.autocast")
    if config.settings.get("compile.mode") in (None, "none"):
        left_out.add("compile.scope")
    rules = table().programs[ConfigKind.ACCELERATE].rules
    yield from config.by({key: rule for key, rule in rules.items() if key not in left_out})
    if isinstance(config.get("fsdp_config"), dict):
        yield from config.by(_checkpointing("fsdp_config.fsdp_activation_checkpointing"))
    strategy, several = config.settings.get("parallel.strategy"), config.machines > 1
    counts: Words = {"num_processes": config.gpus, **({"num_machines": config.machines} if several else {})}
    if strategy == "ddp":  # options of DDP belong into the code
        kind = "MULTI_CPU" if config.on_cpu else "MULTI_GPU"
        yield from config.say("parallel.strategy", {"distributed_type": kind, **counts})
    elif strategy == "fully_shard":
        sharded: Words = {"distributed_type": "FSDP", **counts, "fsdp_config.fsdp_version": 2}
        yield from config.say("parallel.strategy", sharded)
        yield from config.by({"parallel.reshard_after_forward": "fsdp_config.fsdp_reshard_after_forward"})


# --- timm and Ultralytics ---------------------------------------------------------------------------------------


def _timm(config: Wanted) -> Iterator[Phrase]:
    """The phrases for the file that timm's ``train.py --config`` reads: options with underscores."""
    yield from config.by(table().programs[ConfigKind.TIMM].rules)
    how = config.settings.get("optimizer.implementation")
    if how in ("fused", "foreach") and config.get("opt") in (None, "", "sgd", "momentum", "adam", "adamw"):
        yield from config.say("optimizer.implementation", {f"opt_kwargs.{how}": True})
    yield from config.batch_per_gpu("batch_size" if config.mode is Mode.TRAIN else "validation_batch_size")


def _ultralytics(config: Wanted) -> Iterator[Phrase]:
    """The phrases for the file that ``yolo cfg=`` reads."""
    yield from config.by(table().programs[ConfigKind.ULTRALYTICS].rules)
    batch, count = config.settings.get("data.batch_size", config.get("batch")), config.settings.get("step.accumulate")
    if isinstance(batch, int) and isinstance(count, int) and batch > 0:
        yield from config.say("step.accumulate", {"nbs": batch * count})


_SAY: Mapping[ConfigKind, Callable[[Wanted], Iterator[Phrase]]] = {
    ConfigKind.HUGGINGFACE: _huggingface,
    ConfigKind.LIGHTNING: _lightning,
    ConfigKind.ACCELERATE: _accelerate,
    ConfigKind.TIMM: _timm,
    ConfigKind.ULTRALYTICS: _ultralytics,
}


# The keys that name a class, each with the key that holds the class's arguments ("" if they are beside it).
_MAKERS = {"_target_": "", "class_path": "init_args", "_component_": "", "type": ""}
_FUSABLE = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
_OPTIMIZERS = _FUSABLE | {"NAdam", "RAdam", "Adamax"}
_LIGHTNINGS = ("lightning", "pytorch_lightning", "lightning_fabric")
_PACKAGES = ("pytorch_lightning", "lightning_fabric", "lightning.fabric")


def phrases(config: Wanted) -> Iterator[Phrase]:
    """Phrases for objects that a config makes: its Trainer, optimizer and training loader, if there is only one."""
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
    """The kind of an object by its class; empty if no setting concerns it."""
    package, _, last = name.rpartition(".")
    named_only = not package and ("class_path" in mapping or "lr" in mapping)
    # NeMo's scripts make the Trainer from a mapping without a class.
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
            if config.gpus == 1:  # with several GPUs, a script may divide it among them
                yield from config.by({"data.batch_size": "batch_size"})
        case "trainer":
            for phrase in words_of(ConfigKind.LIGHTNING, config):
                names = {entry.path[len(config.home)] for entry in phrase.entries}
                if name.endswith("Fabric") and not names <= {"precision", "strategy"}:
                    continue  # the optimizer has no other options
                made_by_hydra = name if "_target_" in mapping else ""
                yield replace(phrase, entries=tuple(_as_made(entry, made_by_hydra) for entry in phrase.entries))
        case "arguments":
            yield from words_of(ConfigKind.HUGGINGFACE, config)
        case "accelerator":
            precisions = table().programs[ConfigKind.ACCELERATE].rules["precision.autocast"]
            accumulates = "gradient_accumulation_steps"
            yield from config.by({"precision.autocast": precisions, "step.accumulate": accumulates})


def _clips_under_lightnings_autocast(config: Wanted) -> bool:
    """Whether Lightning's Trainer clips gradients in mixed precision; it refuses this with a fused optimizer."""
    autocast = config.settings.get("precision.autocast")
    trainers = [mapping for _, mapping in walk(config.tree) if isinstance(mapping, dict)]
    precisions = [str(trainer.get("precision")) for trainer in trainers if trainer.get("gradient_clip_val")]
    return any(autocast != "none" if autocast else precision.endswith("mixed") for precision in precisions)


def _as_made(entry: Entry, trainer: str) -> Entry:
    """An entry of a class with arguments, in jsonargparse's form, or in Hydra's form if Hydra makes the Trainer.

    The class is from the Trainer's own package, because Lightning's two packages refuse each other's objects.
    """
    if not trainer or "strategy" not in entry.path[:-1]:
        return entry
    path = tuple({"class_path": "_target_"}.get(part, part) for part in entry.path if part != "init_args")
    package = next((name for name in _PACKAGES if trainer.startswith(name)), "lightning.pytorch")
    return Entry(path, f"{package}.strategies.DDPStrategy" if path[-1] == "_target_" else entry.value)
