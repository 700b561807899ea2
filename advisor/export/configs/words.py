"""Settings in the words of frameworks: by the table of words, or by rules that look at other values."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from advisor.export.configs.document import Path, Scalar, at, holds
from advisor.export.configs.kinds import Rules, Words, names_classes, table
from advisor.records import ConfigKind, Mode, Value, text_of

LOADER_KEYS = ("data.num_workers", "data.pin_memory", "data.persistent_workers", "data.prefetch_factor")
WORKERS, PIN, PERSISTENT, PREFETCH = LOADER_KEYS
_DDP_OPTIONS = ("gradient_as_bucket_view", "bucket_cap_mb", "find_unused_parameters")


@dataclass(frozen=True, slots=True)
class Entry:
    """A value at a path. ``only_there``: it is written only where the config has something else there."""

    path: Path
    value: Scalar
    only_there: bool = False

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: {'null' if self.value is None else text_of(self.value)}"


@dataclass(frozen=True, slots=True)
class Phrase:
    """Settings said together by some entries. Without entries the framework does so anyway."""

    keys: tuple[str, ...]
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings that a config is to hold, the facts of the measured loop, and the config's contents.

    ``along``: what the loop had anyway of the same kind, written where there is a place for it. ``current`` holds the
    user's present values: a word is only replaced by its name where the config says the same word. ``on_cpu``: the loop
    was measured on a CPU. The settings are for ``gpus`` GPUs on ``machines``. ``home`` is the path of the arguments of
    the config's program in its ``tree``.
    """

    settings: Mapping[str, Value]
    current: Mapping[str, Value] = field(default_factory=dict)
    key_map: Mapping[str, str] = field(default_factory=dict)
    along: Mapping[str, Value] = field(default_factory=dict)
    mode: Mode = Mode.TRAIN
    on_cpu: bool = False
    gpus: int = 1
    machines: int = 1
    tree: Mapping[str, Any] = field(default_factory=dict)
    home: Path = ()

    def get(self, *path: str) -> Any:
        """The config's value under a key of the framework; None where it says nothing."""
        return at(self.tree, (*self.home, *path))

    def has(self, name: str) -> bool:
        """Whether the config has a key of the framework, with whatever value."""
        return holds(at(self.tree, self.home), name)

    def say(self, keys: str | tuple[str, ...], words: Words) -> Iterator[Phrase]:
        """Entries for some settings; empty if a required entry is missing."""
        entries, missing = [], False
        for name, word in words.items():
            path = name.rstrip("?!").split(".")
            missing |= name.endswith("!") and not self.get(*path)
            entries.append(Entry((*self.home, *path), word, only_there=name.endswith(("?", "!"))))
        if not missing:
            yield Phrase((keys,) if isinstance(keys, str) else keys, tuple(entries))

    def by(self, rules: Rules) -> Iterator[Phrase]:
        """The settings that rules have words for, in the order of the rules."""
        for key, rule in rules.items():
            if key in self.settings:
                value = self.settings[key]
                words = {rule: value} if isinstance(rule, str) else rule.get(value, rule.get("*"))
                if words is not None:
                    yield from self.say(key, {name: value if word == "*" else word for name, word in words.items()})

    def batch_per_gpu(self, name: str) -> Iterator[Phrase]:
        """The batch size, under a key that counts the samples of one GPU."""
        size = self.settings.get("data.batch_size")
        if isinstance(size, int) and size % self.gpus == 0:
            yield from self.say("data.batch_size", {name: size // self.gpus})

    def loader_options(self, prefix: str = "") -> Iterator[Phrase]:
        """Options of a DataLoader under their own names, with something before each."""
        workers = self.settings.get(WORKERS, self.get(f"{prefix}num_workers"))
        # A loader without workers refuses a number of batches to prefetch.
        names = {key: prefix + key.partition(".")[2] for key in LOADER_KEYS if workers or key != PREFETCH}
        yield from self.by(names)


def words_of(kind: ConfigKind, config: Wanted) -> Iterator[Phrase]:
    """The entries that say settings in a config of this kind; none for a kind that has no names for them."""
    if kind in _SAY:
        yield from _SAY[kind](config)


def _checkpointing(switch: str) -> Rules:
    """The words for activation checkpointing, which is a boolean in a config."""
    return {"memory.activation_checkpointing": {"none": {switch: False}, "blocks": {switch: True}}}


# --- Hugging Face TrainingArguments -----------------------------------------------------------------------------

# Arguments of the Trainer that Axolotl drops without a word, and a mode of compilation that it refuses.
_NOT_AXOLOTL = {"dataloader_persistent_workers", "use_cpu", "fsdp", "fsdp_config"}
_NOT_AXOLOTL_MODE = "max-autotune-no-cudagraphs"
_IN_DEEPSPEED = {
    "bf16": ("bf16", "enabled"),
    "fp16": ("fp16", "enabled"),
    "per_device_train_batch_size": ("train_micro_batch_size_per_gpu",),
    "gradient_accumulation_steps": ("gradient_accumulation_steps",),
}


def _huggingface(config: Wanted) -> Iterator[Phrase]:
    """``transformers.TrainingArguments``, and configs that share its names, such as Axolotl's."""
    axolotl = config.has("base_model") and config.has("micro_batch_size")
    for phrase in _training_arguments(config):
        written = [entry for entry in phrase.entries if not entry.only_there]
        refused = any(_NOT_AXOLOTL & {*one.path} or one.value == _NOT_AXOLOTL_MODE for one in written)
        if not axolotl or not refused:
            # DeepSpeed's own section has to say the same, or `auto`.
            pairs = [(("deepspeed", *_IN_DEEPSPEED.get(one.path[-1], ("",))), one.value) for one in phrase.entries]
            inside = (Entry((*config.home, *path), word) for path, word in pairs if isinstance(config.get(*path), int))
            yield replace(phrase, entries=(*phrase.entries, *inside))


def _training_arguments(config: Wanted) -> Iterator[Phrase]:
    """The words of TrainingArguments."""
    dtype = config.settings.get("precision.autocast")
    switches = {"bf16": dtype == "bfloat16", "fp16": dtype == "float16", "pure_bf16": False}  # LLaMA-Factory's the last
    words = {name if on else f"{name}?": on for name, on in switches.items()}
    if dtype in ("bfloat16", "float16") and config.on_cpu:
        words["use_cpu"] = True  # transformers refuses mixed precision without a GPU unless that is said
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
    """Arguments of Lightning's ``Trainer``."""
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
    # A script that passes what it reads on to the Trainer makes no object of a class.
    makes_objects = names_classes(config.tree) or "seed_everything" in config.tree or config.has("_target_")
    given = [name for name in _DDP_OPTIONS if f"parallel.{name}" in config.settings and makes_objects]
    if config.settings.get("parallel.strategy") == "ddp" and given:
        yield from config.say("parallel.strategy", {"strategy.class_path": _DDP_STRATEGY})
        yield from config.by({f"parallel.{name}": f"strategy.init_args.{name}" for name in given})
    else:
        yield from config.by({"parallel.strategy": {"ddp": {"strategy": "ddp"}}})


# --- Accelerate -------------------------------------------------------------------------------------------------


def _accelerate(config: Wanted) -> Iterator[Phrase]:
    """The file that ``accelerate config`` writes."""
    left_out = set[str]()
    if config.get("deepspeed_config", "deepspeed_config_file"):  # Accelerate refuses it beside DeepSpeed's own file
        left_out.add("precision.autocast")
    if config.settings.get("compile.mode") in (None, "none"):
        left_out.add("compile.scope")
    rules = table().programs[ConfigKind.ACCELERATE].rules
    yield from config.by({key: rule for key, rule in rules.items() if key not in left_out})
    if isinstance(config.get("fsdp_config"), dict):
        yield from config.by(_checkpointing("fsdp_config.fsdp_activation_checkpointing"))
    strategy, several = config.settings.get("parallel.strategy"), config.machines > 1
    counts: Words = {"num_processes": config.gpus, **({"num_machines": config.machines} if several else {})}
    if strategy == "ddp":  # whose options are for the code
        kind = "MULTI_CPU" if config.on_cpu else "MULTI_GPU"
        yield from config.say("parallel.strategy", {"distributed_type": kind, **counts})
    elif strategy == "fully_shard":
        sharded: Words = {"distributed_type": "FSDP", **counts, "fsdp_config.fsdp_version": 2}
        yield from config.say("parallel.strategy", sharded)
        yield from config.by({"parallel.reshard_after_forward": "fsdp_config.fsdp_reshard_after_forward"})


# --- timm and Ultralytics ---------------------------------------------------------------------------------------


def _timm(config: Wanted) -> Iterator[Phrase]:
    """The file that timm's ``train.py --config`` reads: its options with underscores."""
    yield from config.by(table().programs[ConfigKind.TIMM].rules)
    how = config.settings.get("optimizer.implementation")
    if how in ("fused", "foreach") and config.get("opt") in (None, "", "sgd", "momentum", "adam", "adamw"):
        yield from config.say("optimizer.implementation", {f"opt_kwargs.{how}": True})
    yield from config.batch_per_gpu("batch_size" if config.mode is Mode.TRAIN else "validation_batch_size")


def _ultralytics(config: Wanted) -> Iterator[Phrase]:
    """The file that ``yolo cfg=`` reads."""
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
