"""Tells which program reads a config, by its keys."""

from collections.abc import Iterator, Mapping
from typing import Any

from advisor.export.configs.document import walk
from advisor.records import ConfigKind


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Names of a program's arguments that hardly any other has.
_OWN: Mapping[ConfigKind, frozenset[str]] = {
    ConfigKind.HUGGINGFACE: _words(
        """per_device_train_batch_size per_device_eval_batch_size num_train_epochs dataloader_num_workers
        dataloader_pin_memory lr_scheduler_type save_strategy eval_strategy evaluation_strategy save_total_limit
        torch_compile_mode ddp_find_unused_parameters overwrite_output_dir remove_unused_columns load_best_model_at_end
        sample_packing sequence_len hub_model_id"""
    ),
    ConfigKind.ACCELERATE: _words(
        """compute_environment distributed_type main_training_function downcast_bf16 machine_rank num_machines
        rdzv_backend same_network fsdp_config deepspeed_config dynamo_config main_process_ip tpu_use_sudo
        enable_cpu_affinity fp8_config"""
    ),
    ConfigKind.TIMM: _words(
        """train_interpolation cooldown_epochs drop_path model_ema_decay model_ema reprob remode recount aug_splits
        sched_on_updates torchcompile no_prefetcher bce_loss aug_repeats opt_eps opt_betas warmup_lr layer_decay aa"""
    ),
    ConfigKind.ULTRALYTICS: _words(
        """imgsz close_mosaic mosaic nbs lrf warmup_bias_lr hsv_h hsv_s hsv_v copy_paste box dfl cos_lr single_cls
        overlap_mask mask_ratio exist_ok save_period degrees"""
    ),
    ConfigKind.LIGHTNING: _words(  # of its Trainer
        """accelerator accumulate_grad_batches gradient_clip_val gradient_clip_algorithm log_every_n_steps
        val_check_interval limit_train_batches limit_val_batches limit_test_batches enable_checkpointing
        num_sanity_val_steps check_val_every_n_epoch detect_anomaly enable_progress_bar enable_model_summary
        overfit_batches fast_dev_run reload_dataloaders_every_n_epochs use_distributed_sampler inference_mode
        sync_batchnorm default_root_dir"""
    ),
}
# A program is believed from this number of names on. A count.
_ENOUGH = 2
# Names that are surely a program's, and names that it shares with others: these count beside one of the first.
_BESIDE: Mapping[ConfigKind, tuple[frozenset[str], frozenset[str]]] = {
    ConfigKind.HUGGINGFACE: (
        _words("per_device_train_batch_size per_device_eval_batch_size"),
        _words("learning_rate output_dir gradient_accumulation_steps gradient_checkpointing bf16 fp16"),
    ),
    ConfigKind.LIGHTNING: (
        _OWN[ConfigKind.LIGHTNING] | {"precision"},
        _words("max_epochs min_epochs max_steps max_time devices strategy benchmark num_nodes"),
    ),
}
# Names of other programs that have many names of a kind: YOLOv5, scripts made after timm's (MAE, DeiT, torchvision) or
# without Hugging Face's Trainer (diffusers), and trainers that took over Lightning's names.
_OTHERS: Mapping[ConfigKind, frozenset[str]] = {
    ConfigKind.ULTRALYTICS: _words("batch_size fl_gamma obj_pw cls_pw anchor_t iou_t"),
    ConfigKind.TIMM: _words("num_workers accum_iter blr use_amp lr_warmup_epochs"),
    ConfigKind.HUGGINGFACE: _words("train_batch_size max_train_steps num_warmup_steps with_tracking mixed_precision"),
    ConfigKind.LIGHTNING: _words("amp use_amp fp16 bf16 device"),
}
_SUBCOMMANDS = ("fit", "validate", "test", "predict")
# Values of `precision` that Lightning alone has.
_PRECISIONS = frozenset({"16-mixed", "bf16-mixed", "16-true", "bf16-true", "32-true", "64-true", "transformer-engine"})
# Deepest mapping of a program's arguments, as in `trainer: args:`. Levels.
_DEEPEST_HOME = 2
# Names of mappings that hold a program's arguments.
_NESTED = ("training_args", "training_arguments", "training", "train", "trainer", "args", "train_args")


def kind_of(tree: Mapping[str, Any]) -> ConfigKind:
    """The kind that has most of its own names in a config; plain where none has enough."""
    if _is_hydra(tree):
        return ConfigKind.HYDRA
    found = {kind: max(_names(kind, mapping) for _, mapping in _places(tree)) for kind in _OWN}
    found[ConfigKind.LIGHTNING] = _names_of_lightning(tree)
    best = max(found, key=lambda kind: found[kind])
    return best if found[best] >= _ENOUGH else ConfigKind.PLAIN


def names_classes(tree: Mapping[str, Any]) -> bool:
    """Whether a config has classes as jsonargparse reads them, which refuses names that it does not know."""
    return any(isinstance(node, dict) and "class_path" in node for _, node in walk(tree))


def refuses_new_names(tree: Mapping[str, Any]) -> bool:
    """Whether a config is one of yacs by its names, all in capitals: that refuses names which its program has not."""
    return len(tree) > 1 and all(isinstance(name, str) and name.isupper() for name in tree)


def home_of(kind: ConfigKind, tree: Mapping[str, Any]) -> tuple[str, ...]:
    """The path of the mapping whose keys are the program's arguments: often the top level."""
    if kind is ConfigKind.LIGHTNING:
        if command := _subcommand(tree):
            return (command, *home_of(kind, tree[command]))
        arguments = frozenset().union(*_BESIDE[kind])
        return ("trainer",) if "trainer" in tree or len(arguments & tree.keys()) < _ENOUGH else ()
    return max(_places(tree), key=lambda place: _names(kind, place[1]))[0] if kind in _OWN else ()


def has_trainer_arguments(mapping: Mapping[str, Any]) -> bool:
    """Whether a mapping has the arguments of Lightning's Trainer, by their names."""
    return _names(ConfigKind.LIGHTNING, mapping) >= _ENOUGH


def _places(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """The mappings that may be a program's arguments, with their paths: a tree, and those of certain names in it."""
    yield path, tree
    for name in _NESTED if len(path) < _DEEPEST_HOME else ():
        if isinstance(tree.get(name), dict):
            yield from _places(tree[name], (*path, name))


def _names(kind: ConfigKind, mapping: Mapping[str, Any]) -> int:
    """The number of a kind's own names in a mapping; none beside the names of another program."""
    if _OTHERS.get(kind, frozenset()) & mapping.keys():
        return 0
    own = set(_OWN[kind] & mapping.keys())
    if kind is ConfigKind.LIGHTNING and str(mapping.get("precision")) in _PRECISIONS:
        own.add("precision")
    sure, shared = _BESIDE.get(kind, (frozenset(), frozenset()))
    return len(own) + (len(shared & mapping.keys()) if sure & own else 0)


def _names_of_lightning(tree: Mapping[str, Any]) -> int:
    """The number of Lightning's own names, under ``trainer:`` in a LightningCLI's config, or at the top level."""
    if command := _subcommand(tree):
        return _names_of_lightning(tree[command])
    trainer = tree.get("trainer")
    if "seed_everything" in tree and isinstance(trainer, dict | None) and "trainer" in tree:
        return _ENOUGH + len(trainer or ())
    inside = _names(ConfigKind.LIGHTNING, trainer) if isinstance(trainer, dict) else 0
    # Other programs share its words for a precision.
    return inside or (_names(ConfigKind.LIGHTNING, tree) if _OWN[ConfigKind.LIGHTNING] & tree.keys() else 0)


def _subcommand(tree: Mapping[str, Any]) -> str:
    """The subcommand of a LightningCLI whose arguments a config has under its name; empty for none."""
    return next((name for name in _SUBCOMMANDS if isinstance(tree.get(name), dict) and "trainer" in tree[name]), "")


def _is_hydra(tree: Mapping[str, Any]) -> bool:
    """Whether a config is composed by Hydra, names what that makes, or has a value that has to be given."""
    defaults = tree.get("defaults")
    composed = isinstance(defaults, list) and (
        "_self_" in defaults or any(isinstance(item, dict) and len(item) == 1 for item in defaults)
    )
    found = (node == "???" or (isinstance(node, dict) and "_target_" in node) for _, node in walk(tree))
    return "hydra" in tree or composed or any(found)
