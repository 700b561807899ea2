"""Names that configs of no framework have for settings, and values in the words that a config uses already.

A value is replaced only where it means the same: the name is unmistakable, there is one such value, and it is of the
same kind.
"""

import re
from collections.abc import Mapping
from typing import Any

from advisor.export.configs.document import Path, Scalar, at, evaluates, is_interpolation, walk
from advisor.export.configs.words import Entry
from advisor.records import Mode, Value

# Where a new word begins in a name: `num-workers`, `numWorkers`.
_WITHIN_A_NAME = re.compile(r"-|(?<=[a-z0-9])(?=[A-Z])")
# Names of a setting that mean nothing else, beside the last part of its key; letters' case and dashes do not count.
_NAMES: Mapping[str, str] = {
    "data.batch_size": """train_micro_batch_size_per_gpu per_device_train_batch_size micro_batch_size batch_size_per_gpu
        samples_per_gpu""",
    "data.num_workers": """workers n_workers num_worker worker_num dataloader_num_workers dataloader_workers
        num_data_workers max_data_loader_n_workers num_loader_workers workers_per_gpu""",
    "data.pin_memory": "pin_mem dataloader_pin_memory",
    "data.persistent_workers": "dataloader_persistent_workers persistent_data_loader_workers",
    "data.prefetch_factor": "dataloader_prefetch_factor",
    "step.accumulate": """gradient_accumulation_steps accumulate_grad_batches grad_accum_steps accumulation_steps
        gradient_accumulation accum_steps grad_accumulation_steps grad_accum accum_grad accum_iter accum_freq
        gradient_accumulation_iters accumulation_iters num_gradient_accumulation_steps grad_accumulation_factor""",
    "backends.deterministic": "deterministic",
}
# Settings whose product is a total of samples to an update, and names of that total.
MAKE_A_TOTAL = ("data.batch_size", "step.accumulate")
_TOTALS = frozenset({"global_batch_size", "total_batch_size", "effective_batch_size"})
# Names of booleans, and the values of the setting for true and false.
_SWITCHES: Mapping[str, tuple[tuple[str, Value, Value], ...]] = {
    "precision.autocast": (
        ("bf16 use_bf16 bf16_autocast amp_bf16 use_bfloat16", "bfloat16", "none"),
        ("fp16 use_fp16", "float16", "none"),
    ),
    "compile.mode": (("compile torch_compile use_compile compile_model torchcompile", "default", "none"),),
    "optimizer.implementation": (("fused use_fused fused_optimizer fused_adam fused_adamw", "fused", "for-loop"),),
    "model.memory_format": (("channels_last use_channels_last", "channels_last", "contiguous"),),
    "memory.activation_checkpointing": (
        (
            "gradient_checkpointing activation_checkpointing grad_checkpointing use_gradient_checkpointing "
            "enable_activation_checkpointing use_checkpoint",
            "blocks",
            "none",
        ),
    ),
    "precision.float32_matmul": (("tf32 allow_tf32 use_tf32", "high", "highest"),),
}
# Names of words, which are replaced where the config's word says what the loop has now.
_WORDS: Mapping[str, str] = {
    "precision.autocast": "mixed_precision autocast_dtype amp_dtype autocast precision",
    "precision.float32_matmul": "float32_matmul_precision matmul_precision float32_matmul",
    "compile.mode": "compile_mode torch_compile_mode",
}
# Names of booleans that switch on what a word beside them says, as `enabled` does beside `amp_dtype`.
_SWITCHES_OF_WORDS: Mapping[str, str] = {
    "precision.autocast": "amp use_amp amp_enabled autocast use_autocast mixed_precision use_mixed_precision enabled",
    "compile.mode": "compile torch_compile use_compile compile_model torchcompile enabled enable",
}
# The ways to write a type of numbers: for float32 (or no autocast), float16 and bfloat16.
_FAMILIES: tuple[Mapping[str, Scalar], ...] = (
    {"none": "32-true", "float16": "16-mixed", "bfloat16": "bf16-mixed"},
    {"none": "no", "float16": "fp16", "bfloat16": "bf16"},
    {"none": "fp32", "float16": "fp16", "bfloat16": "bf16"},
    {"none": "float32", "float16": "float16", "bfloat16": "bfloat16"},
    {"none": "torch.float32", "float16": "torch.float16", "bfloat16": "torch.bfloat16"},
    {"none": "float", "float16": "half", "bfloat16": "bfloat16"},
    {"none": "none", "float16": "float16", "bfloat16": "bfloat16"},
    {"none": "fp32", "float16": "amp_fp16", "bfloat16": "amp_bf16"},
)
# Values of `precision` that are no metric: Lightning's and Composer's.
_PRECISIONS = frozenset({*_FAMILIES[0].values(), "amp_fp16", "amp_bf16"})
# Other words of Lightning, whose family is the first.
_OF_LIGHTNING = frozenset({"32", "16", "bf16-true", "16-true"})
_DTYPES = ("precision.autocast", "precision.weights")


def entries_for(
    key: str, value: Value, tree: Mapping[str, Any], current: Mapping[str, Value], mode: Mode = Mode.TRAIN
) -> tuple[Entry, ...]:
    """Entries for a setting, found by name in a config of no known kind; none unless the match is unique.

    Of sections for training and for evaluation the one that ``mode`` speaks of counts.
    """
    own = key.rpartition(".")[2]
    names = {own, *_NAMES.get(key, "").split(), *_WORDS.get(key, "").split(), *_switches_of(key)}
    exact = [path for path, node in walk(tree) if ".".join(path) == key and not isinstance(node, dict | list)]
    found = exact or _of_mode(
        mode, [path for path, node in walk(tree) if path and _name(path) in names and _may_say(path, node)]
    )
    pair = _pair(found, key)
    if pair is not None:
        return _precision_switches(pair, value, tree)
    words = [path for path in found if isinstance(at(tree, path), str) and _named_for(key, path)]
    switch = _switch_beside(words[0], key, tree) if len(words) == 1 else None
    if switch is not None:
        agrees = key not in current or _agree(at(tree, words[0]), at(tree, switch), current[key])
        return _word_and_switch(words[0], switch, key, value, tree) if agrees and {*found} <= {words[0], switch} else ()
    if len(found) != 1:
        return ()
    path = found[0]
    said = _said(key, value, path, at(tree, path), current, exact=bool(exact))
    if said is None or (key in MAKE_A_TOTAL and not exact and divides_a_total(tree)):
        return ()
    return (Entry(path, said),)


def divides_a_total(tree: Mapping[str, Any]) -> bool:
    """Whether a mapping has a total of samples to an update beside those to a batch: one follows from the other."""
    return any(_has_total_and_part(node) for _, node in walk(tree))


def _has_total_and_part(node: object) -> bool:
    names = {_WITHIN_A_NAME.sub("_", name).lower() for name in node} if isinstance(node, dict) else set()
    return not names.isdisjoint(_TOTALS) and not names.isdisjoint({"batch_size", "micro_batch_size"})


def _of_mode(mode: Mode, found: list[Path]) -> list[Path]:
    """The paths for training without those of evaluation; for inference those of evaluation, if there are any."""
    evaluating = [path for path in found if evaluates(path)]
    if mode is Mode.INFER:
        return evaluating or found
    return [path for path in found if path not in evaluating]


def _may_say(path: Path, node: object) -> bool:
    """Whether a value of a name may be a setting: ``precision`` may be a metric, and what is offloaded is no batch."""
    if "offload" in " ".join(path).lower():
        return False
    return not isinstance(node, dict | list) and (_name(path) != "precision" or node in _PRECISIONS)


def in_the_words_of(present: object, key: str, value: Value) -> Scalar:
    """A setting's value in the words that a config uses for its present one: ``bf16-mixed`` beside ``32-true``.

    Returns the value itself where the present one has no words of its own. Raises TypeError where the present one is
    true or false, or a number, and cannot say the value.
    """
    if key in _DTYPES and (said := _in_family(present, value)) is not None:
        return said
    if isinstance(present, bool) and not isinstance(value, bool):
        raise TypeError("true or false")
    if isinstance(present, int | float) and isinstance(value, str | bool) and not isinstance(present, bool):
        raise TypeError("a number")
    return value


def switched(name: str, key: str, value: Value) -> bool | None:
    """The value of a boolean entry of this name that expresses a setting's value; None where none does."""
    values = _switches_of(key).get(_name((name,)))
    if values is None or value not in values:
        return None
    return value == values[0]


def _switches_of(key: str) -> dict[str, tuple[Value, Value]]:
    """The booleans that can say a setting: their names with what true and false mean."""
    return {name: (on, off) for names, on, off in _SWITCHES.get(key, ()) for name in names.split()}


def _name(path: Path) -> str:
    return _WITHIN_A_NAME.sub("_", path[-1]).lower()


def _said(key: str, value: Value, path: Path, present: object, current: Mapping[str, Value], *, exact: bool) -> Scalar:
    """The value at a path that expresses a setting's value; None where it would mean something else."""
    if is_interpolation(present):
        return value  # never written: the document says that it is computed, and where
    if isinstance(present, bool):
        return value if isinstance(value, bool) else switched(path[-1], key, value)
    if isinstance(present, int | float):
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if not isinstance(present, str) or not isinstance(value, str):
        return str(value) if _is_quoted_number(present) and type(value) is int else None
    if key in _DTYPES:
        return _in_family(present, value) if exact or _means(present, current.get(key)) else None
    return value if exact or (present == current.get(key) and _named_for(key, path)) else None


def _is_quoted_number(present: object) -> bool:
    return isinstance(present, str) and present.isascii() and present.isdigit()


def _named_for(key: str, path: Path) -> bool:
    """Whether a path means the setting: by its name alone, or in a section of the key's name."""
    section, _, own = key.partition(".")
    return _name(path) != own or any(section in part.lower() for part in path[:-1])


def _means(present: str, now: Value | None) -> bool:
    """Whether a config's word for a number type agrees with the loop's present one."""
    return any(word == present and dtype == now for family in _FAMILIES for dtype, word in family.items())


def _in_family(present: object, value: Value) -> Scalar | None:
    """A type of numbers in the words among which a config's present word is; None where it is none of any."""
    dtype = "none" if value in ("none", "float32") else value
    if isinstance(present, bool):
        return None
    of_lightning = str(present) in _OF_LIGHTNING
    family = next((family for family in _FAMILIES if of_lightning or present in family.values()), None)
    return family.get(str(dtype)) if family else None


def _pair(found: list[Path], key: str) -> Path | None:
    """The mapping that holds both ``bf16`` and ``fp16``."""
    if key != "precision.autocast" or len(found) != 2:
        return None
    first, second = found
    return first[:-1] if first[:-1] == second[:-1] and {_name(first), _name(second)} == {"bf16", "fp16"} else None


def _switch_beside(word: Path, key: str, tree: Mapping[str, Any]) -> Path | None:
    """The only boolean beside a word that switches on what the word says."""
    names = _SWITCHES_OF_WORDS.get(key, "").split()
    beside = [(*word[:-1], name) for name, node in at(tree, word[:-1]).items() if isinstance(node, bool)]
    found = [path for path in beside if _name(path) in names]
    return found[0] if len(found) == 1 else None


def _agree(word: str, is_on: bool, now: Value) -> bool:
    """Whether a word and the switch beside it say what the loop has now."""
    return word == now or _means(word, now) if is_on else now == "none"


def _word_and_switch(word: Path, switch: Path, key: str, value: Value, tree: Mapping[str, Any]) -> tuple[Entry, ...]:
    if value == "none":
        return (Entry(switch, False),)
    said = _in_family(at(tree, word), value) if key in _DTYPES else value
    return () if said is None else (Entry(word, said), Entry(switch, True))


def _precision_switches(home: Path, value: Value, tree: Mapping[str, Any]) -> tuple[Entry, ...]:
    mapping = at(tree, home)
    names = {name.lower(): name for name in mapping}
    wanted = {"bf16": value == "bfloat16", "fp16": value == "float16"}
    if not all(isinstance(mapping[names[name]], bool | None) for name in wanted):
        return ()
    return tuple(Entry((*home, names[name]), on, only_there=not on) for name, on in wanted.items())
