"""Patched configs, loaded by the frameworks that they are for. Importing these takes seconds: all of it is here."""

from __future__ import annotations

import argparse
import json
import sys
from types import SimpleNamespace

import pytest
import yaml
from process_state import state_put_back
from project_configs import TUNED, patch_of

from advisor.export.config_patch import patched
from advisor.export.configs.words import Wanted

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _as_it_was():
    """Restore PyTorch's flags, because a framework that reads a config sets them."""
    with state_put_back():
        yield


def written(name, tmp_path, settings=TUNED, **options):
    """A patched config as a file."""
    path = tmp_path / name
    path.write_bytes(patch_of(name, settings, **options).text.encode())
    return path


def training_arguments(path, **more):
    """TrainingArguments of a config, as the examples of Hugging Face parse theirs; other scripts' keys are left out."""
    transformers = pytest.importorskip("transformers")
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    read = parser.parse_json_file if path.suffix == ".json" else parser.parse_yaml_file
    return read(str(path), allow_extra_keys=True, **more)[0]


@pytest.mark.parametrize("name", ["hf_run_glue.json", "llama_factory.yaml"])
def test_training_arguments(name, tmp_path, monkeypatch):
    monkeypatch.delenv("ACCELERATE_DYNAMO_BACKEND", raising=False)
    arguments = training_arguments(written(name, tmp_path, on_cpu=True))
    assert (arguments.bf16, arguments.fp16) == (True, False)
    assert (arguments.torch_compile, arguments.torch_compile_mode) == (True, "max-autotune")
    assert arguments.optim == "adamw_torch_fused"
    assert arguments.gradient_accumulation_steps == 2
    assert arguments.dataloader_num_workers == 4
    assert arguments.dataloader_persistent_workers is True
    assert arguments.dataloader_prefetch_factor == 2
    assert arguments.accelerator_config.non_blocking is True


def cli_of(path, monkeypatch, tmp_path):
    """LightningCLI on a config, without running anything."""
    from lightning.pytorch.cli import LightningCLI

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["main.py", "--config", str(path)])
    return LightningCLI(run=False, save_config_callback=None)


def test_lightning_cli_with_an_optimizer(tmp_path, monkeypatch):
    pytest.importorskip("lightning")
    settings = {**TUNED, "backends.cudnn_benchmark": True, "backends.deterministic": False}
    cli = cli_of(written("lightning_cli_optimizer.yaml", tmp_path, settings), monkeypatch, tmp_path)
    assert (cli.trainer.precision, cli.trainer.accumulate_grad_batches) == ("bf16-mixed", 2)
    assert cli.model.configure_optimizers()[0][0].defaults["fused"] is True


def test_hydra_composes_and_makes_what_the_config_says(tmp_path):
    hydra = pytest.importorskip("hydra")
    utils = pytest.importorskip("hydra.utils")
    torch = pytest.importorskip("torch")
    written("hydra_loaders.yaml", tmp_path)
    with hydra.initialize_config_dir(str(tmp_path), version_base=None):
        config = hydra.compose("hydra_loaders")
    loader = utils.instantiate(config.train_loader, dataset=torch.utils.data.TensorDataset(torch.zeros(8, 2)))
    assert (loader.num_workers, loader.persistent_workers, loader.prefetch_factor) == (4, True, 2)
    assert loader.batch_size == 32
    optimizer = utils.instantiate(config.optimizer, params=[torch.nn.Parameter(torch.zeros(2))])
    assert optimizer.defaults["fused"] is True
    assert config.args.bf16 is True


def test_accelerate(tmp_path):
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    launch = pytest.importorskip("accelerate.commands.launch")
    path = written("accelerate_default.yaml", tmp_path, {**TUNED, "compile.scope": "regional"})
    config = config_args.load_config_from_file(str(path))
    assert config.mixed_precision == "bf16"
    assert config.dynamo_config["dynamo_backend"] == "INDUCTOR"
    arguments = launch.launch_command_parser().parse_args(["--config_file", str(path), "--cpu", "train.py"])
    arguments, defaults, _ = launch._validate_launch_command(arguments)
    assert defaults.dynamo_config == config.dynamo_config
    assert (arguments.mixed_precision, arguments.dynamo_mode) == ("bf16", "max-autotune")
    assert arguments.dynamo_use_regional_compilation is True


DDP = {"parallel.strategy": "ddp", "parallel.bucket_cap_mb": 100}
SHARDED = {"parallel.strategy": "fully_shard", "parallel.reshard_after_forward": False}


def test_training_arguments_for_several_gpus(tmp_path):
    settings = {**DDP, "parallel.find_unused_parameters": False}
    path = written("hf_run_glue.json", tmp_path, {**settings, "data.batch_size": 64}, gpus=2, on_cpu=True)
    arguments = training_arguments(path)
    assert arguments.ddp_bucket_cap_mb == 100
    assert arguments.ddp_find_unused_parameters is False
    assert arguments.per_device_train_batch_size == 32
    assert not patch_of("hf_run_glue.json", settings, gpus=2).rest
    sharded = json.loads(written("hf_run_glue.json", tmp_path, SHARDED, gpus=2).read_text())
    assert (sharded["fsdp"], sharded["fsdp_config"]) == (True, {"version": 2, "reshard_after_forward": False})


def test_lightning_for_several_gpus(tmp_path, monkeypatch):
    strategies = pytest.importorskip("lightning.pytorch.strategies")
    path = written("lightning_cli.yaml", tmp_path, DDP, gpus=2)
    strategy = yaml.safe_load(path.read_text())["trainer"]["strategy"]
    assert strategy["class_path"].rpartition(".")[2] == strategies.DDPStrategy.__name__
    assert strategies.DDPStrategy(**strategy["init_args"])._ddp_kwargs == {"bucket_cap_mb": 100}
    assert isinstance(cli_of(path, monkeypatch, tmp_path).trainer.strategy, strategies.DDPStrategy)
    short = written("lightning_cli.yaml", tmp_path, {"parallel.strategy": "ddp"}, gpus=2)
    assert yaml.safe_load(short.read_text())["trainer"]["strategy"] == "ddp"


@pytest.mark.parametrize("target", ["lightning.Trainer", "pytorch_lightning.Trainer", "lightning.fabric.Fabric"])
def test_hydra_makes_the_strategy_of_the_trainer_that_it_makes(target):
    pytest.importorskip(target.partition(".")[0])
    text = f"trainer:\n  _target_: {target}\n  accelerator: cpu\n  devices: 2\n"
    patch = patched(text, Wanted({**DDP, "precision.autocast": "bfloat16", "step.accumulate": 2}, gpus=2))
    made = pytest.importorskip("hydra.utils").instantiate(yaml.safe_load(patch.text))["trainer"]
    assert type(made.strategy).__name__ == "DDPStrategy"
    assert made.strategy._ddp_kwargs == {"bucket_cap_mb": 100}
    assert ("step.accumulate" in patch.rest) is target.endswith("Fabric")
    script = patched(text.replace(f"  _target_: {target}\n", "  max_epochs: 1\n  log_every_n_steps: 1\n"), Wanted(DDP))
    assert yaml.safe_load(script.text)["trainer"]["strategy"] == "ddp"
    assert script.rest == {key: value for key, value in DDP.items() if value != "ddp"}


@pytest.mark.parametrize("name", ["accelerate_default.yaml", "accelerate_fsdp.yaml"])
def test_accelerate_for_several_gpus(name, tmp_path):
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    config = config_args.load_config_from_file(str(written(name, tmp_path, DDP, gpus=2)))
    assert (str(config.distributed_type.value), config.num_processes) == ("MULTI_GPU", 2)
    sharded = config_args.load_config_from_file(str(written(name, tmp_path, SHARDED, gpus=2)))
    assert (str(sharded.distributed_type.value), sharded.num_processes) == ("FSDP", 2)
    assert sharded.fsdp_config["fsdp_version"] == 2
    assert sharded.fsdp_config["fsdp_reshard_after_forward"] is False


def timm_parser() -> argparse.ArgumentParser:
    """The options of timm's train.py that a patch writes, with that script's types and defaults."""
    parser = argparse.ArgumentParser()
    for name in ("amp", "channels-last", "grad-checkpointing", "pin-mem", "no-prefetcher"):
        parser.add_argument(f"--{name}", action="store_true", default=False)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--torchscript", action="store_true")
    group.add_argument("--torchcompile", nargs="?", type=str, default=None, const="inductor")
    parser.add_argument("--torchcompile-mode", type=str, default=None)
    parser.add_argument("--amp-dtype", default="float16", type=str)
    parser.add_argument("--model-dtype", default=None, type=str)
    parser.add_argument("--opt", default="sgd", type=str)
    parser.add_argument("--opt-kwargs", nargs="*", default={})
    for name, default in (("batch-size", 128), ("workers", 4), ("grad-accum-steps", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser


def test_timm(tmp_path):
    optim = pytest.importorskip("timm.optim")
    torch = pytest.importorskip("torch")
    config = yaml.safe_load(written("timm_vit.yaml", tmp_path).read_text())
    parser = timm_parser()
    parser.set_defaults(**config)
    arguments = parser.parse_args([])
    assert (arguments.amp, arguments.amp_dtype, arguments.channels_last) == (True, "bfloat16", True)
    assert (arguments.torchcompile, arguments.torchcompile_mode) == ("inductor", "max-autotune")
    assert (arguments.workers, arguments.pin_mem, arguments.grad_accum_steps) == (4, True, 2)
    assert arguments.torchscript is arguments.no_prefetcher is False
    options = optim.optimizer_kwargs(SimpleNamespace(opt="adamw", lr=1e-3, weight_decay=0.0, momentum=0.9))
    made = optim.create_optimizer_v2(torch.nn.Linear(2, 2), **options, **arguments.opt_kwargs)
    assert made.param_groups[0]["fused"] is True


def test_ultralytics(tmp_path):
    cfg = pytest.importorskip("ultralytics.cfg")
    settings = {**TUNED, "compile.mode": "reduce-overhead", "backends.deterministic": False, "data.batch_size": 24}
    config = cfg.get_cfg(overrides=str(written("ultralytics_train.yaml", tmp_path, settings)))
    assert (config.amp, config.compile, config.channels_last) == ("bf16", "reduce-overhead", True)
    assert (config.workers, config.batch, config.nbs, config.deterministic) == (4, 24, 48, False)
