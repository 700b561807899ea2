"""The words that frameworks have for settings: which of their keys take which value.

Names and types are those of transformers 5.23, accelerate 1.15, lightning 2.6, timm 1.0.31, ultralytics 8.4 and
mmengine 0.10; ``tests/export/test_config_frameworks.py`` loads what is written with each of them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from advisor.export.configs.document import Path, Scalar, at, holds
from advisor.export.configs.kinds import names_classes
from advisor.records import ConfigKind, Mode, Value, text_of

LOADER_KEYS = ("data.num_workers", "data.pin_memory", "data.persistent_workers", "data.prefetch_factor")
WORKERS, PIN, PERSISTENT, PREFETCH = LOADER_KEYS
_DDP_OPTIONS = ("bucket_cap_mb", "static_graph", "find_unused_parameters")
# Options of DistributedDataParallel, which Accelerate's DistributedDataParallelKwargs takes too.
DDP_KEYS = ("parallel.gradient_as_bucket_view", *(f"parallel.{name}" for name in _DDP_OPTIONS))
_CHECKPOINTING: Mapping[Value, Scalar] = {"none": False, "blocks": True}
_CHANNELS_LAST: Mapping[Value, Scalar] = {"contiguous": False, "channels_last": True}
MIXED_PRECISION: Mapping[Value, Scalar] = {"bfloat16": "bf16", "float16": "fp16", "none": "no"}
# Arguments of the Trainer that Axolotl drops without a word, and the modes of compilation that it takes.
_NOT_AXOLOTL = {"dataloader_persistent_workers", "ddp_static_graph", "use_cpu", "fsdp", "reshard_after_forward"}
_AXOLOTL_COMPILES = ("none", "default", "reduce-overhead", "max-autotune")
_ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_hf", None)


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
class Config:
    """The input of a phrase: the wanted settings, the config's contents, and the path of the arguments in it.

    ``on_cpu``: the loop was measured on a CPU. ``gpus`` is how many the settings are for, on ``machines``.
    """

    settings: Mapping[str, Value]
    tree: Mapping[str, Any]
    home: Path = ()
    mode: Mode = Mode.TRAIN
    on_cpu: bool = False
    gpus: int = 1
    machines: int = 1

    def batch_per_gpu(self, *path: str) -> Iterator[Phrase]:
        """The batch size, under a key that counts the samples of one GPU."""
        size = self.settings.get("data.batch_size")
        if isinstance(size, int) and size % self.gpus == 0:
            yield Phrase(("data.batch_size",), (Entry((*self.home, *path), size // self.gpus),))

    def get(self, *path: str) -> Any:
        """The config's value under a key of the framework; None where it says nothing."""
        return at(self.tree, (*self.home, *path))

    def has(self, name: str) -> bool:
        """Whether the config has a key of the framework, with whatever value."""
        return holds(at(self.tree, self.home), name)

    def entry(self, name: str, value: Scalar, *inside: str) -> Entry:
        """A value of the framework's key."""
        return Entry((*self.home, name, *inside), value)

    def off(self, name: str, value: Scalar = False) -> Entry:
        """An entry that switches off an option of the config that contradicts a setting, if it is there."""
        return Entry((*self.home, name), value, only_there=True)

    def translated(self, key: str, words: Mapping[Value, Scalar], name: str, *inside: str) -> Iterator[Phrase]:
        """A setting for some of whose values the framework has words of its own; nothing for another value."""
        value = self.settings.get(key)
        if value is not None and value in words:
            yield Phrase((key,), (self.entry(name, words[value], *inside),))

    def said(self, key: str, name: str, *inside: str) -> Iterator[Phrase]:
        """A setting whose value the framework takes as it is, under a key that may lie inside another."""
        if key in self.settings:
            yield Phrase((key,), (self.entry(name, self.settings[key], *inside),))


Words = Callable[[Config], Iterator[Phrase]]


def words_of(kind: ConfigKind) -> Words:
    """The words of a kind of config; a plain one has none."""
    return _WORDS.get(kind, lambda config: iter(()))


# --- Hugging Face TrainingArguments -----------------------------------------------------------------------------


def huggingface(config: Config) -> Iterator[Phrase]:
    """``transformers.TrainingArguments``, and configs that share its names, such as Axolotl's."""
    axolotl = config.has("base_model") and config.has("micro_batch_size")
    for phrase in _hf_arguments(config):
        if axolotl and not _axolotl_takes(phrase, config):
            continue
        inside = _in_deepspeed(config, phrase) if isinstance(config.get("deepspeed"), dict) else ()
        yield replace(phrase, entries=(*phrase.entries, *inside))


def _axolotl_takes(phrase: Phrase, config: Config) -> bool:
    """Whether Axolotl has all that a phrase of TrainingArguments writes."""
    written = {part for entry in phrase.entries if not entry.only_there for part in entry.path}
    modes = "compile.mode" not in phrase.keys or config.settings["compile.mode"] in _AXOLOTL_COMPILES
    return modes and not written & _NOT_AXOLOTL


def _in_deepspeed(config: Config, phrase: Phrase) -> Iterator[Entry]:
    """The same values in DeepSpeed's own section, which the Trainer compares with its own. ``auto`` stays."""
    said: dict[Path, Scalar] = {}
    if phrase.keys == ("precision.autocast",):
        dtype = config.settings["precision.autocast"]
        said = {("bf16", "enabled"): dtype == "bfloat16", ("fp16", "enabled"): dtype == "float16"}
    elif phrase.keys == ("data.batch_size",) and config.mode is Mode.TRAIN:
        said = {("train_micro_batch_size_per_gpu",): phrase.entries[0].value}
    elif phrase.keys == ("step.accumulate",):
        said = {("gradient_accumulation_steps",): phrase.entries[0].value}
    for path, value in said.items():
        if isinstance(config.get("deepspeed", *path), int):
            yield config.entry("deepspeed", value, *path)


def _hf_arguments(config: Config) -> Iterator[Phrase]:
    """The words of TrainingArguments."""
    yield from _hf_precision(config)
    yield from config.translated("precision.float32_matmul", {"high": True, "highest": False}, "tf32")
    name = "activation_checkpointing" if config.has("activation_checkpointing") else "gradient_checkpointing"
    yield from config.translated("memory.activation_checkpointing", _CHECKPOINTING, name)
    yield from _hf_compilation(config)
    yield from _hf_optimizer(config)
    yield from config.said("step.accumulate", "gradient_accumulation_steps")
    batch = "per_device_train_batch_size" if config.mode is Mode.TRAIN else "per_device_eval_batch_size"
    if config.mode is Mode.TRAIN and config.has("micro_batch_size") and not config.has(batch):
        batch = "micro_batch_size"
    yield from config.batch_per_gpu(batch)
    yield from loader_options(config, "dataloader_")
    yield from _hf_parallel(config)
    yield from _hf_habits(config)


def _hf_precision(config: Config) -> Iterator[Phrase]:
    dtype = config.settings.get("precision.autocast")
    if dtype is None:
        return
    wanted, other = {"bfloat16": ("bf16", "fp16"), "float16": ("fp16", "bf16")}.get(str(dtype), (None, None))
    switch = config.entry(wanted, True) if wanted else config.off("bf16")
    # Transformers refuses mixed precision on a machine without a GPU that is not said to be one.
    on_cpu = (config.entry("use_cpu", True),) if wanted and config.on_cpu else ()
    pure = config.off("pure_bf16")  # LLaMA-Factory refuses it beside mixed precision
    yield Phrase(("precision.autocast",), (switch, config.off(other or "fp16"), pure, *on_cpu))


def _hf_compilation(config: Config) -> Iterator[Phrase]:
    mode = config.settings.get("compile.mode")
    if mode == "none":
        off = (config.off("torch_compile_mode", None), config.off("torch_compile_backend", None))
        yield Phrase(("compile.mode",), (config.entry("torch_compile", False), *off))
    elif mode is not None:
        on = (config.entry("torch_compile", True), config.entry("torch_compile_mode", mode))
        yield Phrase(("compile.mode",), (*on, config.off("torch_compile_backend", "inductor")))


def _hf_habits(config: Config) -> Iterator[Phrase]:
    """The words for habits of a loop, most of which a config has to name already."""
    settings = config.settings
    yield from config.said("data.non_blocking", "accelerator_config", "non_blocking")
    if settings.get("model.use_cache") is False:  # the Trainer's own default
        yield Phrase(("model.use_cache",), (config.off("use_cache"),))
    if settings.get("backends.deterministic") is False and config.get("full_determinism"):
        yield Phrase(("backends.deterministic",), (config.off("full_determinism"),))
    if settings.get("loop.empty_cache") == "never" and config.get("torch_empty_cache_steps"):
        yield Phrase(("loop.empty_cache",), (config.off("torch_empty_cache_steps", None),))


def _hf_parallel(config: Config) -> Iterator[Phrase]:
    """The words of ``Trainer`` on several GPUs: under torchrun it uses DDP if nothing else is said."""
    strategy = config.settings.get("parallel.strategy")
    if strategy == "ddp":
        yield Phrase(("parallel.strategy",), (config.off("fsdp", None),))
        for name in _DDP_OPTIONS:
            yield from config.said(f"parallel.{name}", f"ddp_{name}")
    elif strategy == "fully_shard":
        version = config.entry("fsdp_config", 2, "version")
        yield Phrase(("parallel.strategy",), (config.entry("fsdp", True), version))
        yield from config.said("parallel.reshard_after_forward", "fsdp_config", "reshard_after_forward")
    if config.settings.get("parallel.no_sync"):
        yield Phrase(("parallel.no_sync",))


def _hf_optimizer(config: Config) -> Iterator[Phrase]:
    name = "optimizer" if config.has("optimizer") and not config.has("optim") else "optim"
    if config.get(name) not in _ADAMW:
        return
    state, how = config.settings.get("optimizer.state"), config.settings.get("optimizer.implementation")
    words = {"8-bit": "adamw_torch_8bit", "adafactor": "adafactor"}
    if state in words:
        keys = ("optimizer.state",) if how is None else ("optimizer.state", "optimizer.implementation")
        yield Phrase(keys, (config.entry(name, words[str(state)]),))
    elif how in ("fused", "foreach"):
        word = "adamw_torch_fused" if how == "fused" else "adamw_torch"
        yield Phrase(("optimizer.implementation",), (config.entry(name, word),))


def loader_options(config: Config, prefix: str, *inside: str) -> Iterator[Phrase]:
    """Options of a DataLoader under their own names, with something before each."""
    workers = config.settings.get(WORKERS, config.get(*inside, f"{prefix}num_workers"))
    for key in LOADER_KEYS:
        if key in config.settings:
            path = (*config.home, *inside, prefix + key.partition(".")[2])
            refused = key == PREFETCH and not workers  # by a loader without workers
            entry = Entry(path, None, only_there=True) if refused else Entry(path, config.settings[key])
            yield Phrase((key,), (entry,))


# --- Lightning --------------------------------------------------------------------------------------------------


def lightning(config: Config) -> Iterator[Phrase]:
    """Arguments of Lightning's ``Trainer``."""
    settings = config.settings
    autocast, weights = settings.get("precision.autocast"), settings.get("precision.weights")
    half = {"bfloat16": "bf16", "float16": "16"}
    if weights in half and autocast in (None, "none", weights):
        keys = ("precision.weights",) if autocast is None else ("precision.weights", "precision.autocast")
        yield Phrase(keys, (config.entry("precision", f"{half[str(weights)]}-true"),))
    elif autocast is not None:
        keys = ("precision.autocast",) if weights is None else ("precision.autocast", "precision.weights")
        word = f"{half[str(autocast)]}-mixed" if autocast in half else "32-true"
        if weights in (None, "float32"):
            yield Phrase(keys, (config.entry("precision", word),))
    yield from config.said("step.accumulate", "accumulate_grad_batches")
    yield from config.said("backends.cudnn_benchmark", "benchmark")
    if settings.get("backends.deterministic") is False:
        yield Phrase(("backends.deterministic",), (config.entry("deterministic", False),))
    if settings.get("debug.switches") == "none":
        off = (config.off("detect_anomaly"), config.off("profiler", None))
        if config.get("detect_anomaly") or config.get("profiler"):
            yield Phrase(("debug.switches",), off)
    yield from config.translated("infer.grad", {"no_grad": False, "inference_mode": True}, "inference_mode")
    yield from _lightning_parallel(config)


_DDP_STRATEGY = "lightning.pytorch.strategies.DDPStrategy"


def _lightning_parallel(config: Config) -> Iterator[Phrase]:
    """The strategy of DistributedDataParallel, with its options as a class's arguments. ``fully_shard`` has no word.

    A script that passes what it reads on to ``Trainer`` makes no object of a class.
    """
    makes_objects = names_classes(config.tree) or "seed_everything" in config.tree or config.has("_target_")
    given = [key for key in DDP_KEYS if key in config.settings and makes_objects]
    if config.settings.get("parallel.strategy") == "ddp" and not given:
        yield Phrase(("parallel.strategy",), (config.entry("strategy", "ddp"),))
    elif config.settings.get("parallel.strategy") == "ddp":
        yield Phrase(("parallel.strategy",), (config.entry("strategy", _DDP_STRATEGY, "class_path"),))
        for key in given:
            yield from config.said(key, "strategy", "init_args", key.partition(".")[2])


# --- Accelerate -------------------------------------------------------------------------------------------------


def accelerate(config: Config) -> Iterator[Phrase]:
    """The file that ``accelerate config`` writes."""
    settings = config.settings
    if not config.get("deepspeed_config", "deepspeed_config_file"):  # Accelerate refuses it beside DeepSpeed's own file
        yield from config.translated("precision.autocast", MIXED_PRECISION, "mixed_precision")
    mode, scope, dynamic = (settings.get(f"compile.{name}") for name in ("mode", "scope", "dynamic"))

    def dynamo(name: str, value: Scalar) -> Entry:
        return config.entry("dynamo_config", value, name)

    if mode == "none":
        yield Phrase(("compile.mode",), (dynamo("dynamo_backend", "NO"),))
    elif mode is not None:
        yield Phrase(("compile.mode",), (dynamo("dynamo_backend", "INDUCTOR"), dynamo("dynamo_mode", mode)))
        if scope in ("model", "regional"):
            yield Phrase(("compile.scope",), (dynamo("dynamo_use_regional_compilation", scope == "regional"),))
        if isinstance(dynamic, bool):
            yield Phrase(("compile.dynamic",), (dynamo("dynamo_use_dynamic", dynamic),))
    if isinstance(config.get("fsdp_config"), dict):
        path = ("fsdp_config", "fsdp_activation_checkpointing")
        yield from config.translated("memory.activation_checkpointing", _CHECKPOINTING, *path)
    yield from _accelerate_parallel(config)


def _accelerate_parallel(config: Config) -> Iterator[Phrase]:
    """The kind of distribution and the number of processes. The options of DistributedDataParallel are for the code."""
    strategy, counts = config.settings.get("parallel.strategy"), [config.entry("num_processes", config.gpus)]
    if config.machines > 1:
        counts.append(config.entry("num_machines", config.machines))
    if strategy == "ddp":
        kind = "MULTI_CPU" if config.on_cpu else "MULTI_GPU"
        yield Phrase(("parallel.strategy",), (config.entry("distributed_type", kind), *counts))
    elif strategy == "fully_shard":
        version = config.entry("fsdp_config", 2, "fsdp_version")
        yield Phrase(("parallel.strategy",), (config.entry("distributed_type", "FSDP"), *counts, version))
        yield from config.said("parallel.reshard_after_forward", "fsdp_config", "fsdp_reshard_after_forward")
    if config.settings.get("parallel.no_sync"):
        yield Phrase(("parallel.no_sync",))


# --- timm -------------------------------------------------------------------------------------------------------


def timm(config: Config) -> Iterator[Phrase]:
    """The file that timm's ``train.py --config`` reads: its options with underscores."""
    settings = config.settings
    dtype = settings.get("precision.autocast")
    if dtype == "none":
        yield Phrase(("precision.autocast",), (config.entry("amp", False),))
    elif dtype is not None:
        yield Phrase(("precision.autocast",), (config.entry("amp", True), config.entry("amp_dtype", dtype)))
    weights = settings.get("precision.weights")
    if weights is not None:
        entry = config.off("model_dtype", None) if weights == "float32" else config.entry("model_dtype", weights)
        yield Phrase(("precision.weights",), (entry,))
    yield from config.translated("model.memory_format", _CHANNELS_LAST, "channels_last")
    yield from config.translated("memory.activation_checkpointing", _CHECKPOINTING, "grad_checkpointing")
    mode = settings.get("compile.mode")
    if mode == "none":
        yield Phrase(("compile.mode",), (config.off("torchcompile", None),))
    elif mode is not None:
        on = (config.entry("torchcompile", "inductor"), config.entry("torchcompile_mode", mode))
        yield Phrase(("compile.mode",), (*on, config.off("torchscript")))
    how, name = settings.get("optimizer.implementation"), str(config.get("opt") or "sgd")
    if how in ("fused", "foreach") and name in ("sgd", "momentum", "adam", "adamw"):
        yield Phrase(("optimizer.implementation",), (config.entry("opt_kwargs", True, str(how)),))
    batch = "batch_size" if config.mode is Mode.TRAIN else "validation_batch_size"
    yield from config.said("step.accumulate", "grad_accum_steps")
    yield from config.said(WORKERS, "workers")
    yield from config.said(PIN, "pin_mem")
    yield from config.batch_per_gpu(batch)
    if settings.get("parallel.strategy") == "ddp":
        yield Phrase(("parallel.strategy",))
    yield from _always_in_timm(config)


def _always_in_timm(config: Config) -> Iterator[Phrase]:
    always = {PERSISTENT: True, PREFETCH: 2, "backends.cudnn_benchmark": True, "precision.float32_matmul": "high"}
    for key, value in always.items():
        if config.settings.get(key) == value:
            yield Phrase((key,))
    for key in ("data.device_prefetch", "data.non_blocking"):
        if config.settings.get(key) is True:
            yield Phrase((key,), (config.off("no_prefetcher"),))


# --- Ultralytics ------------------------------------------------------------------------------------------------


def ultralytics(config: Config) -> Iterator[Phrase]:
    """The file that ``yolo cfg=`` reads."""
    settings = config.settings
    yield from config.translated("precision.autocast", {"bfloat16": "bf16", "float16": True, "none": False}, "amp")
    modes = ("default", "reduce-overhead", "max-autotune-no-cudagraphs")
    yield from config.translated("compile.mode", {"none": False, **dict(zip(modes, modes, strict=True))}, "compile")
    yield from config.translated("model.memory_format", _CHANNELS_LAST, "channels_last")
    yield from config.said("data.batch_size", "batch")
    yield from config.said(WORKERS, "workers")
    yield from config.said("backends.deterministic", "deterministic")
    batch, count = settings.get("data.batch_size", config.get("batch")), settings.get("step.accumulate")
    if isinstance(batch, int) and isinstance(count, int) and batch > 0:
        yield Phrase(("step.accumulate",), (config.entry("nbs", batch * count),))


# --- mmengine ---------------------------------------------------------------------------------------------------


def mmengine(config: Config) -> Iterator[Phrase]:
    """A config of mmengine's ``Runner``, as YAML or JSON."""
    settings = config.settings
    dtype = settings.get("precision.autocast")
    wrapper = config.get("optim_wrapper", "type") or "OptimWrapper"

    def optim(name: str, value: Scalar) -> Entry:
        return config.entry("optim_wrapper", value, name)

    only_in_amp = any(config.get("optim_wrapper", name) is not None for name in ("dtype", "loss_scale", "use_fsdp"))
    if dtype == "none" and wrapper in ("OptimWrapper", "AmpOptimWrapper") and not only_in_amp:
        yield Phrase(("precision.autocast",), (optim("type", "OptimWrapper"),))
    elif dtype not in (None, "none") and wrapper in ("OptimWrapper", "AmpOptimWrapper"):
        yield Phrase(("precision.autocast",), (optim("type", "AmpOptimWrapper"), optim("dtype", dtype)))
    yield from config.said("step.accumulate", "optim_wrapper", "accumulative_counts")
    mode = settings.get("compile.mode")
    if mode in ("none", "default") and not isinstance(config.get("compile"), dict):
        yield Phrase(("compile.mode",), (config.entry("compile", mode == "default"),))
    elif mode not in (None, "none"):
        yield Phrase(("compile.mode",), (config.entry("compile", mode, "mode"),))
    yield from config.said("backends.cudnn_benchmark", "env_cfg", "cudnn_benchmark")
    if settings.get("backends.deterministic") is False and config.get("randomness", "deterministic"):
        yield Phrase(("backends.deterministic",), (config.entry("randomness", False, "deterministic"),))
    loader = "train_dataloader" if config.mode is Mode.TRAIN else "test_dataloader"
    if isinstance(config.get(loader), dict):
        yield from loader_options(config, "", loader)
        yield from config.batch_per_gpu(loader, "batch_size")


# --- detectron2, DeepSpeed and torchtitan -----------------------------------------------------------------------


def detectron2(config: Config) -> Iterator[Phrase]:
    """A config of detectron2, whose automatic mixed precision is float16."""
    amp = ("SOLVER", "AMP", "ENABLED")
    yield from config.translated("precision.autocast", {"float16": True, "none": False}, *amp)
    yield from config.said(WORKERS, "DATALOADER", "NUM_WORKERS")
    yield from config.said("data.batch_size", "SOLVER", "IMS_PER_BATCH")
    yield from config.said("backends.cudnn_benchmark", "CUDNN_BENCHMARK")


def deepspeed(config: Config) -> Iterator[Phrase]:
    """A config of DeepSpeed. Its ``bf16`` holds the weights in bfloat16, which is not autocast."""
    names = {"step.accumulate": "gradient_accumulation_steps", "data.batch_size": "train_micro_batch_size_per_gpu"}
    keys = tuple(key for key in names if key in config.settings)
    total = config.get("train_batch_size")
    now = [config.get(name) for name in names.values()]
    new = [config.settings.get(key, value) for key, value in zip(names, now, strict=True)]
    if not keys:
        return
    entries = tuple(config.entry(names[key], config.settings[key]) for key in keys)
    if total is None:
        yield Phrase(keys, entries)
    elif all(isinstance(number, int) and number > 0 for number in (total, *now, *new)):
        # DeepSpeed refuses a total that is not the product of the three.
        processes = total // (now[0] * now[1])
        yield Phrase(keys, (*entries, config.entry("train_batch_size", processes * new[0] * new[1])))


def torchtitan(config: Config) -> Iterator[Phrase]:
    """A config of torchtitan with a ``[compile]`` table. It compiles block by block, in the usual mode."""
    mode, components = config.settings.get("compile.mode"), config.get("compile", "components")
    compiles_model = not isinstance(components, list) or "model" in components
    if mode in ("none", "default") and isinstance(config.get("compile", "enable"), bool) and compiles_model:
        by_block = ("compile.scope",) if config.settings.get("compile.scope") == "regional" else ()
        yield Phrase(("compile.mode", *by_block), (config.entry("compile", mode == "default", "enable"),))


_WORDS: Mapping[ConfigKind, Words] = {
    ConfigKind.HUGGINGFACE: huggingface,
    ConfigKind.LIGHTNING: lightning,
    ConfigKind.ACCELERATE: accelerate,
    ConfigKind.TIMM: timm,
    ConfigKind.ULTRALYTICS: ultralytics,
    ConfigKind.MMENGINE: mmengine,
    ConfigKind.DETECTRON2: detectron2,
    ConfigKind.DEEPSPEED: deepspeed,
    ConfigKind.TORCHTITAN: torchtitan,
}
