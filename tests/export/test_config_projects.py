"""Configs in the styles of public projects: only the meant lines change, and nothing is lost."""

import json
import re

import pytest
import yaml
from project_configs import CONFIGS, PATCHES, TUNED, described, patch_of, text_of
from torch.utils.data import DataLoader

from advisor.errors import UsageError
from advisor.export.config_patch import diff, patched
from advisor.export.configs.words import Wanted
from advisor.recipe.settings import Settings
from advisor.records import ConfigKind, Mode

EXPECTED = {part.partition(":")[0]: f"=== {part}" for part in PATCHES.read_text("utf-8").split("=== ")[1:]}


@pytest.mark.parametrize("name", CONFIGS)
def test_only_the_meant_lines_change(name):
    assert described(name) == EXPECTED[name]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_setting_is_somewhere_and_a_second_patch_changes_nothing(name):
    patch = patch_of(name)
    assert set(TUNED) <= {*patch.said, *patch.added, *patch.rest}
    assert not set(patch.said) & {*patch.added, *patch.rest}
    assert (Settings.from_yaml(patch.text, name) if patch.added else Settings()) == patch.added
    assert patched(patch.text, Wanted(TUNED, TUNED), name=name, kind=patch.kind).text == patch.text


def test_the_comment_behind_the_last_entry_stays_with_it():
    text = "{\n  bf16: false # mixed, {or not}\n}\n"
    wanted = Wanted({"data.num_workers": 2, "precision.autocast": "bfloat16"})
    patch = patched(text, wanted, kind=ConfigKind.HUGGINGFACE)
    first, *_, last = patch.text.splitlines()[1:-1]
    assert ("bf16" in first, first.partition("true, ")[2][2:].strip(" /#")) == (True, "mixed, {or not}")
    assert "mixed" not in last
    assert patch.rest == {}


def changes(name: str, settings, **options) -> list[str]:
    """The lines that a patch adds to a config."""
    text = text_of(name)
    found = diff(text, patched(text, Wanted(settings, {}, **options), name=name).text, "c").splitlines()[3:]
    return [line[1:].strip() for line in found if line.startswith("+")]


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("hf_run_glue.json", {"precision.autocast": "none"}, ['"fp16": false,']),  # what contradicts is switched off
        ("llama_factory.yaml", {"precision.autocast": "float16"}, ["bf16: false", "fp16: true"]),
        ("llama_factory.yaml", {"precision.autocast": "none"}, ["bf16: false"]),
        (
            "accelerate_fsdp.yaml",
            {"memory.activation_checkpointing": "blocks"},
            ["fsdp_activation_checkpointing: true"],
        ),
        (
            "ultralytics_train.yaml",
            {"precision.autocast": "none", "compile.mode": "default"},
            ["amp: False", "compile: default"],
        ),
        ("lightning_cli.yaml", {"precision.weights": "bfloat16"}, ["precision: bf16-true   # full precision"]),
        ("hydra_template_model.yaml", {"optimizer.implementation": "foreach"}, ["foreach: true"]),
        (
            "axolotl_lora.yml",
            {"data.batch_size": 8, "optimizer.state": "8-bit"},
            ["micro_batch_size: 8", "optimizer: adamw_torch_8bit"],
        ),
        ("plain_train.toml", {"precision.autocast": "bfloat16"}, ["bf16 = true"]),
        # workers that are gone take their options with them
        ("hf_nested_arguments.yaml", {"data.num_workers": 0, "data.prefetch_factor": 4}, []),
    ],
)
def test_words_and_contradictions(name, settings, expected):
    assert changes(name, settings) == expected


@pytest.mark.parametrize(
    "text",
    [
        "accelerator:\n  _target_: accelerate.Accelerator\n  cpu: true\n  mixed_precision: bf16\n",
        "accelerator:\n  class_path: accelerate.Accelerator\n  init_args:\n    cpu: true\n    mixed_precision: bf16\n",
    ],
)
def test_an_accelerator_takes_a_setting_where_its_class_has_its_arguments(text):
    before = text.rpartition("cpu: true")[0] + "cpu: true\n"
    assert patched(before, Wanted({"precision.autocast": "bfloat16"})).text == text


@pytest.mark.parametrize(
    ("trainer", "settings", "fused"),
    [
        ("{gradient_clip_val: 1.0}", {"precision.autocast": "bfloat16"}, False),
        ("{gradient_clip_val: 1.0, precision: bf16-mixed}", {}, False),
        ("{gradient_clip_val: 1.0, precision: bf16-mixed}", {"precision.autocast": "none"}, True),
        ("{gradient_clip_val: null}", {"precision.autocast": "bfloat16"}, True),
    ],
)
def test_an_optimizer_is_not_fused_where_lightning_then_refuses_to_clip(trainer, settings, fused):
    text = f"trainer: {trainer}\nmodel: {{class_path: m.M}}\noptimizer:\n  class_path: torch.optim.AdamW\n"
    patch = patched(text, Wanted({"optimizer.implementation": "fused", **settings}))
    assert ("fused: true" in patch.text) is fused
    assert ("optimizer.implementation" in patch.rest) is not fused


@pytest.mark.parametrize(
    ("before", "prefix"),
    [("", ""), ("per_device_train_batch_size: 8\n", "dataloader_"), ("_target_: torch.utils.data.DataLoader\n", "")],
)
def test_without_workers_a_loader_is_told_nothing_that_it_refuses(before, prefix):
    options = {"num_workers": 4, "persistent_workers": True, "prefetch_factor": 2}
    text = before + "".join(f"{prefix}{name}: {value}\n" for name, value in options.items())
    found = yaml.safe_load(patched(text, Wanted({"data.num_workers": 0})).text)
    DataLoader([1], **{name: found[f"{prefix}{name}"] for name in options})


def test_a_contradiction_that_comes_by_a_merge_key_is_switched_off():
    """Explicit entries override what ``<<`` brings; of several sources the first wins."""
    defaults = "a: &a {fp16: true}\nb: &b {fp16: false, dataloader_num_workers: 2, dataloader_prefetch_factor: 4}\n"
    text = defaults + "args:\n  <<: [*a, *b]\n  per_device_train_batch_size: 8\n  num_train_epochs: 1\n"
    found = yaml.safe_load(patched(text, Wanted({"precision.autocast": "bfloat16", "data.num_workers": 0})).text)
    assert (found["args"]["bf16"], found["args"]["fp16"]) == (True, False)
    DataLoader([1], num_workers=found["args"]["dataloader_num_workers"], prefetch_factor=None)
    assert found["args"]["dataloader_prefetch_factor"] is None


def test_deepspeed_inside_training_arguments_says_the_same():
    """The Trainer refuses values that differ; it puts its own in the place of ``auto``."""
    section = {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": "auto",
        "fp16": {"enabled": True},
        "bf16": {"enabled": False, "x": 1},
        "zero_optimization": {"stage": 2},
    }
    text = json.dumps({"per_device_train_batch_size": 8, "fp16": True, "deepspeed": section})
    settings = {"data.batch_size": 64, "step.accumulate": 2, "precision.autocast": "bfloat16"}
    found = json.loads(patched(text, Wanted(settings), name="args.json", kind=ConfigKind.HUGGINGFACE).text)
    changed = {"train_micro_batch_size_per_gpu": 64, "fp16": {"enabled": False}, "bf16": {"enabled": True, "x": 1}}
    assert found.pop("deepspeed") == {**section, **changed}
    assert found == {"per_device_train_batch_size": 64, "fp16": False, "bf16": True, "gradient_accumulation_steps": 2}


def test_an_inference_session_changes_the_batch_size_of_inference():
    assert changes("hf_alignment_sft.yaml", {"data.batch_size": 32}, mode=Mode.INFER) == [
        "per_device_eval_batch_size: 32"
    ]
    assert changes("hf_alignment_sft.yaml", {"data.batch_size": 32}) == ["per_device_train_batch_size: 32"]


def test_an_interpolation_is_left_as_it_is_and_the_setting_goes_to_the_rest():
    patch = patched(text_of("hydra_loaders.yaml"), Wanted({"data.batch_size": 64}))
    assert patch.text == text_of("hydra_loaders.yaml")
    assert patch.rest == {"data.batch_size": 64}
    assert patch.remarks == (
        "data.batch_size: the config's 'train_loader.batch_size' (line 7) is computed: `${batch}`",
    )


def test_a_map_says_the_setting_in_the_words_of_the_config():
    for name, path, expected in (
        ("lightning_cli.yaml", "trainer.precision", "precision: bf16-mixed   # full precision"),
        (
            "lightning_plain_trainer.yaml",
            "trainer.precision",
            "trainer: {max_epochs: 5, precision: bf16-mixed, accumulate_grad_batches: 1}",
        ),
        ("accelerate_default.yaml", "mixed_precision", "mixed_precision: 'bf16'"),
        ("plain_nested.yaml", "precision.mixed_precision", 'mixed_precision: "bf16"'),
        ("plain_train.toml", "train.bf16", "bf16 = true"),
    ):
        assert changes(name, {"precision.autocast": "bfloat16"}, key_map={"precision.autocast": path}) == [expected]


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("amp: true\n", "precision.autocast", "bfloat16"),
        ("compile: false\n", "compile.mode", "max-autotune"),
        ("workers: 4\n", "precision.autocast", "bfloat16"),
        ("fused: true\n", "optimizer.implementation", "foreach"),
    ],
)
def test_a_map_to_a_value_that_cannot_say_the_setting_is_refused(text, key, value):
    with pytest.raises(UsageError, match=rf"cannot become {value}") as caught:
        patched(text, Wanted({key: value}, key_map={key: text.partition(":")[0]}))
    assert "--map" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "key", "value"),  # in the text, <old>new>
    [
        ("train:\n  bf16: <false>true>\n  fp16: <true>false>\n", "precision.autocast", "bfloat16"),
        ("data.batch_size: <64>128>\n", "data.batch_size", 128),
        ("data: {batch_size: <64>128>}\neval: {batch_size: 16}\n", "data.batch_size", 128),
        ("loaders: {train_ds: {batch_size: <64>128>}, validation_ds: {batch_size: 1}}\n", "data.batch_size", 128),
        ("train: {batch_size: '<64>128>'}\n", "data.batch_size", 128),
        ("mixed_precision: <fp32>bf16>\n", "precision.autocast", "bfloat16"),
        ("amp: <no>yes>\namp_dtype: <fp32>bf16>\n", "precision.autocast", "bfloat16"),
        (
            "defaults: [{model: a}]\ntrainer: {max_epochs: 3, accelerator: auto, precision: <32>bf16-mixed>}\n",
            "precision.autocast",
            "bfloat16",
        ),
        ("tf32: <no>yes>\n", "precision.float32_matmul", "high"),
        ("grad_accum_steps: <4>1>\n", "step.accumulate", 1),
        ("useBf16: <false>true>\n", "precision.autocast", "bfloat16"),
        (
            "precision: <32-true>bf16-mixed>  # c\ndevices: 1\nnum_nodes: 1\nmetrics: {precision: 0.5}\n",
            "precision.autocast",
            "bfloat16",
        ),
    ],
)
def test_names_that_mean_one_thing_in_a_plain_config(text, key, value):
    before, after = (re.sub("<(.*?)>(.*?)>", group, text) for group in (r"\1", r"\2"))
    assert patched(before, Wanted({key: value}, {"precision.autocast": "none"})).text == after


SIZE = {"data.batch_size": 128}


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("first: {batch_size: 64}\nsecond: {batch_size: 16}\n", SIZE),
        ("train: {}\neval: {batch_size: 16}\n", SIZE),
        ("train: {batch_size: auto}\n", SIZE),
        ("train: {batch_size: '64 per GPU'}\n", SIZE),
        ("base: &base {batch_size: 64}\ntrain:\n  <<: *base\n", SIZE),
        ("size: &size 64\ntrain: {batch_size: *size}\n", SIZE),
        ("precision: float32\n", {"precision.autocast": "bfloat16"}),
        ("amp: false\n", {"precision.autocast": "bfloat16"}),
        ("first:\n  bf16: false\nsecond:\n  fp16: false\n", {"precision.autocast": "bfloat16"}),
        ("mixed_precision: fp16\n", {"precision.autocast": "bfloat16"}),
        (
            "distributed_type: DEEPSPEED\nmachine_rank: 0\ndeepspeed_config: {deepspeed_config_file: ds.json}\n",
            {"precision.autocast": "bfloat16"},
        ),
        ("num_workers: ${workers}\n", {"data.num_workers": 4}),
        ("model: {micro_batch_size: 4, global_batch_size: 8}\n", {"data.batch_size": 64}),
        # NeMo refuses another number than 1: it accumulates until the total is reached
        (
            "trainer: {accumulate_grad_batches: 1, precision: 16, log_every_n_steps: 1}\n"
            "model: {micro_batch_size: 4, global_batch_size: 8}\n",
            {"step.accumulate": 2},
        ),
    ],
)
def test_names_that_may_mean_something_else_stay(text, settings):
    patch = patched(text, Wanted(settings, {"precision.autocast": "none", "compile.mode": "none"}))
    assert patch.text.startswith(text)
    assert {**patch.added, **patch.rest} == settings


@pytest.mark.parametrize(
    "text",
    [
        "batch_size: 32\nlr: 0.1\n",
        "per_device_train_batch_size: 8\nlr: 0.1\n",
        "loader: {_target_: torch.utils.data.DataLoader, batch_size: 4}\n",
        "trainer: {max_epochs: 3, precision: 16-mixed}\ndata: {class_path: a.B, init_args: {batch_size: 32}}\n",
    ],
)
def test_a_size_of_batches_of_several_gpus_is_not_written_as_that_of_one(text):
    patch = patched(text, Wanted({"data.batch_size": 256}, gpus=4))
    assert patch.text.startswith(text)
    assert {**patch.added, **patch.rest} == {"data.batch_size": 256}


def test_composer_s_precision_stays_in_its_words():
    wanted = Wanted({"precision.autocast": "bfloat16"}, {"precision.autocast": "float16"})
    assert patched("precision: amp_fp16\n", wanted).text == "precision: amp_bf16\n"


@pytest.mark.parametrize(
    "text",
    [
        "sched: cosine\nlr: 0.1\nbatch_size: 8\nepochs: 3\nmodel: mine\nopt: adamw\n",
        "model: {name: a}\noptimizer: {name: b}\ntraining: {steps: 1}\ncompile: {on: no}\nlr_scheduler: {a: 1}\n",
        "trainer: {epochs: 3, lr: 0.1}\nmodel: a\ndata: b\n",
        "trainer: {precision: bf16, max_steps: 3, devices: 2, strategy: ddp}\noptimizer: {lr: 0.1}\n",
        "train_batch_size: 8\noptimizer: adam\nscheduler: cosine\nfp16: false\n",
        # SlowFast, Swin and HRNet, whose yacs refuses detectron2's names
        "TRAIN: {BATCH_SIZE: 64}\nSOLVER: {MAX_EPOCH: 9}\nMODEL: {ARCH: slowfast}\nTEST: {ENABLE: on}\nNUM_GPUS: 8\n",
        # a script without Hugging Face's Trainer
        "per_device_train_batch_size: 8\nnum_train_epochs: 3\nlr_scheduler_type: linear\nnum_warmup_steps: 0\n",
    ],
)
def test_names_that_many_programs_share_make_no_kind(text):
    assert patched(text, Wanted({})).kind is ConfigKind.PLAIN


@pytest.mark.parametrize("text", ["task:\n  data: ???\nlr: [0.1]\n", "# @package _group_\nlr: 0.1\n"])
def test_a_config_that_hydra_checks_by_a_class_gets_no_section(text):
    patch = patched(text, Wanted({"precision.autocast": "bfloat16"}))
    assert (patch.kind, patch.text, patch.added) == (ConfigKind.HYDRA, text, {})
    assert patch.rest == {"precision.autocast": "bfloat16"}


def test_a_few_unmistakable_names_are_enough():
    text = "per_device_train_batch_size: 8\noutput_dir: out\nlearning_rate: 1e-3\n"
    assert patched(text, Wanted({})).kind is ConfigKind.HUGGINGFACE
    text = "trainer: {max_epochs: 3, accelerator: auto}\nmodel: {width: 3}\n"
    assert patched(text, Wanted({})).kind is ConfigKind.LIGHTNING
    text = "trainer: {max_epochs: 3, precision: 16-mixed}\n"
    assert patched(text, Wanted({})).kind is ConfigKind.LIGHTNING


def test_the_kind_can_be_said():
    text = "epochs: 3\n"
    assert patched(text, Wanted(TUNED)).kind is ConfigKind.PLAIN
    said = patched(text, Wanted({"precision.autocast": "bfloat16"}), kind=ConfigKind.HUGGINGFACE)
    assert said.text == "epochs: 3\nbf16: true\n"
    said = patched(text, Wanted({"precision.autocast": "bfloat16"}), kind=ConfigKind.LIGHTNING)
    assert said.text == "epochs: 3\ntrainer:\n  precision: bf16-mixed\n"
    said = patched("trainer:\n", Wanted({"precision.autocast": "bfloat16"}), kind=ConfigKind.LIGHTNING)
    assert said.text == "trainer:\n  precision: bf16-mixed\n"
