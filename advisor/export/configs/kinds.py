"""Tells which program reads a config, by its keys."""

from collections.abc import Iterator, Mapping
from typing import Any

from advisor.export.configs.document import walk
from advisor.records import ConfigKind


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Clues in keys of one mapping: one that hardly anything else uses counts 2, one that others use too counts 1.
_STRONG = 2
# A kind is believed from this sum of clues on, and this many strong ones among them. Counts.
_ENOUGH, _FEWEST_STRONG = 4, 2
# Of these one strong clue is enough: nothing else has such names.
_UNMISTAKABLE = frozenset({"per_device_train_batch_size", "per_device_eval_batch_size", "optim_wrapper"})

_CLUES: Mapping[ConfigKind, tuple[str, str]] = {
    ConfigKind.HUGGINGFACE: (
        """per_device_train_batch_size per_device_eval_batch_size num_train_epochs dataloader_num_workers
        dataloader_pin_memory lr_scheduler_type save_strategy eval_strategy evaluation_strategy save_total_limit
        torch_compile_mode ddp_find_unused_parameters overwrite_output_dir remove_unused_columns load_best_model_at_end
        sample_packing sequence_len hub_model_id""",
        """model_name_or_path base_model micro_batch_size lora_target_modules gradient_checkpointing report_to
        push_to_hub torch_compile do_train do_eval learning_rate warmup_ratio warmup_steps weight_decay bf16 fp16 tf32
        optim output_dir logging_steps save_steps eval_steps max_steps gradient_accumulation_steps max_grad_norm
        run_name num_epochs flash_attention""",
    ),
    ConfigKind.ACCELERATE: (
        """compute_environment distributed_type main_training_function downcast_bf16 machine_rank num_machines
        rdzv_backend same_network fsdp_config deepspeed_config dynamo_config main_process_ip tpu_use_sudo
        enable_cpu_affinity fp8_config""",
        "num_processes mixed_precision use_cpu gpu_ids debug main_process_port",
    ),
    ConfigKind.TIMM: (
        """train_interpolation cooldown_epochs drop_path model_ema_decay model_ema reprob remode recount aug_splits
        sched_on_updates torchcompile no_prefetcher bce_loss aug_repeats opt_eps opt_betas warmup_lr layer_decay aa""",
        """sched color_jitter amp_dtype pin_mem smoothing crop_pct opt mixup cutmix warmup_epochs min_lr batch_size
        workers channels_last weight_decay epochs lr amp clip_grad drop momentum decay_rate model num_classes""",
    ),
    ConfigKind.ULTRALYTICS: (
        """imgsz close_mosaic mosaic nbs lrf warmup_bias_lr hsv_h hsv_s hsv_v copy_paste box dfl cos_lr single_cls
        overlap_mask mask_ratio exist_ok save_period degrees""",
        "task mode patience rect amp batch workers epochs optimizer cls pose kobj lr0 plots freeze deterministic",
    ),
    ConfigKind.MMENGINE: (
        """optim_wrapper train_cfg val_cfg default_hooks env_cfg param_scheduler
        val_evaluator default_scope visualizer randomness custom_hooks""",
        "_base_ work_dir load_from resume launcher log_level train_dataloader val_dataloader",
    ),
    ConfigKind.DEEPSPEED: (
        """zero_optimization train_micro_batch_size_per_gpu gradient_clipping wall_clock_breakdown steps_per_print
        zero_allow_untested_optimizer""",
        "train_batch_size bf16 fp16 scheduler optimizer gradient_accumulation_steps activation_checkpointing",
    ),
    ConfigKind.DETECTRON2: ("SOLVER DATALOADER DATASETS INPUT _BASE_ VERSION", "MODEL TEST OUTPUT_DIR CUDNN_BENCHMARK"),
    ConfigKind.TORCHTITAN: (
        "activation_checkpoint parallelism lr_scheduler job",
        "training optimizer model profiling metrics checkpoint float8 compile comm",
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
# Arguments of Lightning's Trainer that hardly any other trainer has, and those that others have too. The points of one.
_TRAINER_OWN = _words(
    """accelerator accumulate_grad_batches gradient_clip_val gradient_clip_algorithm log_every_n_steps
    val_check_interval limit_train_batches limit_val_batches limit_test_batches enable_checkpointing
    num_sanity_val_steps check_val_every_n_epoch detect_anomaly enable_progress_bar enable_model_summary
    overfit_batches fast_dev_run reload_dataloaders_every_n_epochs use_distributed_sampler inference_mode
    sync_batchnorm default_root_dir"""
)
_TRAINER_SHARED = _words("max_epochs min_epochs max_steps max_time devices precision strategy benchmark num_nodes")
_TRAINER = _TRAINER_OWN | _TRAINER_SHARED
_OF_TRAINER = 3
_SUBCOMMANDS = ("fit", "validate", "test", "predict")
# Values of `precision` that Lightning alone has.
_PRECISIONS = frozenset({"16-mixed", "bf16-mixed", "16-true", "bf16-true", "32-true", "64-true", "transformer-engine"})
# Deepest mapping of a program's arguments, as in `trainer: args:`. Levels.
_DEEPEST_HOME = 2
# A mapping of these names is not a mapping of some other program's arguments.
_NESTED = ("training_args", "training_arguments", "training", "train", "trainer", "args", "train_args")


def kind_of(tree: Mapping[str, Any]) -> ConfigKind:
    """The kind that most clues speak for; plain where too few speak for any."""
    if _is_hydra(tree):
        return ConfigKind.HYDRA
    places = [mapping for _, mapping in _places(tree)]
    scores = {kind: max(_points(kind, mapping) for mapping in places) for kind in _CLUES}
    scores[ConfigKind.LIGHTNING] = _of_lightning(tree)
    best = max(scores, key=lambda kind: scores[kind])
    return best if scores[best] >= _ENOUGH else ConfigKind.PLAIN


def names_classes(tree: Mapping[str, Any]) -> bool:
    """Whether a config has classes as jsonargparse reads them, which refuses names that it does not know."""
    return any(isinstance(node, dict) and "class_path" in node for _, node in walk(tree))


def refuses_new_names(tree: Mapping[str, Any]) -> bool:
    """Whether a config is one of yacs by its names, all in capitals: that refuses names which its program has not."""
    return len(tree) > 1 and all(isinstance(name, str) and name.isupper() for name in tree)


def home_of(kind: ConfigKind, tree: Mapping[str, Any]) -> tuple[str, ...]:
    """The path of the mapping whose keys are the program's arguments: often the top level."""
    command = _subcommand(tree) if kind is ConfigKind.LIGHTNING else ""
    if command:
        return (command, *home_of(kind, tree[command]))
    if kind is ConfigKind.LIGHTNING:
        trainer = tree.get("trainer")
        return ("trainer",) if isinstance(trainer, dict) or (trainer is None and "trainer" in tree) else _without(tree)
    if kind in _CLUES:
        return max(_places(tree), key=lambda place: _points(kind, place[1]))[0]
    return ()


def _places(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """The mappings that may be a program's arguments, with their paths: a tree, and those of certain names in it."""
    yield path, tree
    for name in _NESTED if len(path) < _DEEPEST_HOME else ():
        if isinstance(tree.get(name), dict):
            yield from _places(tree[name], (*path, name))


def _without(tree: Mapping[str, Any]) -> tuple[str, ...]:
    """The path of Trainer's arguments in a config without ``trainer:``: the top level if they are there."""
    return () if len(_TRAINER & tree.keys()) >= 2 else ("trainer",)


def _points(kind: ConfigKind, mapping: Any) -> int:
    if not isinstance(mapping, dict) or _OTHERS.get(kind, frozenset()) & mapping.keys():
        return 0
    strong, weak = ({name for name in clues.split() if name in mapping} for clues in _CLUES[kind])
    known = len(strong) >= _FEWEST_STRONG or strong & _UNMISTAKABLE
    return _STRONG * len(strong) + len(weak) if known else 0


def _of_lightning(tree: Mapping[str, Any]) -> int:
    """The points of a LightningCLI's config, or of arguments of the Trainer, under ``trainer:`` or at the top level."""
    if command := _subcommand(tree):
        return _of_lightning(tree[command])
    trainer = tree.get("trainer")
    inside = _of_trainer(trainer) if isinstance(trainer, dict) else 0
    if "seed_everything" in tree and isinstance(trainer, dict):  # its own name: the trainer's shared names count too
        inside = max(inside, len(_TRAINER_SHARED & trainer.keys()))
    cli = sum(name in tree for name in ("seed_everything", "ckpt_path", "data", "model", "lr_scheduler", "optimizer"))
    if inside or ("seed_everything" in tree and "trainer" in tree):
        return inside + _STRONG * ("seed_everything" in tree) + cli
    return _of_trainer(tree) if _TRAINER_OWN & tree.keys() else 0  # other programs share its words for a precision


def has_trainer_arguments(mapping: Mapping[str, Any]) -> bool:
    """Whether a mapping has the arguments of Lightning's Trainer, by their names."""
    return _of_trainer(mapping) >= _ENOUGH


def _subcommand(tree: Mapping[str, Any]) -> str:
    """The subcommand of a LightningCLI whose arguments a config has under its name; empty for none."""
    return next((name for name in _SUBCOMMANDS if isinstance(tree.get(name), dict) and "trainer" in tree[name]), "")


def _of_trainer(mapping: Mapping[str, Any]) -> int:
    """The points of a mapping's names; none without a name or a value that is the Trainer's own."""
    if _OTHERS[ConfigKind.LIGHTNING] & mapping.keys():
        return 0
    own = len(_TRAINER_OWN & mapping.keys()) + (str(mapping.get("precision")) in _PRECISIONS)
    return _OF_TRAINER * own + len(_TRAINER_SHARED & mapping.keys()) if own else 0


def _is_hydra(tree: Mapping[str, Any]) -> bool:
    defaults = tree.get("defaults")
    composed = isinstance(defaults, list) and (
        "_self_" in defaults or any(isinstance(item, dict) and len(item) == 1 for item in defaults)
    )
    return "hydra" in tree or composed or any(map(_is_of_hydra, (node for _, node in walk(tree))))


def _is_of_hydra(node: object) -> bool:
    """Whether a node names what Hydra makes, or a value that has to be given: a class often checks such configs."""
    return node == "???" or (isinstance(node, dict) and "_target_" in node)
