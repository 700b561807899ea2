"""Exported settings in the frameworks' own loops: the same training, and one warning about what is left to the user."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from advisor.frameworks import of_objects

SETTINGS = """\
compile.mode: default
model.memory_format: channels_last
optimizer.implementation: foreach
precision.autocast: bfloat16
data.num_workers: 1
step.accumulate: 2
step.zero_grad: zeros
infer.grad: inference_mode
step.cuda_graph: true
"""


@pytest.fixture
def tuned(tmp_path):
    def write(text):
        path = tmp_path / "tuned.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_settings_are_told_apart():
    settings = {"precision.autocast": "bfloat16", "compile.mode": "default", "step.cuda_graph": True}
    inference = {"infer.grad": "no_grad", "compile.freezing": True}
    with pytest.warns(UserWarning, match="trainer: precision.autocast: bfloat16. "):
        assert of_objects({**settings, **inference}, "cpu", {}) == {"compile.mode": "default"}
    with pytest.warns(UserWarning, match="trainer: step.cuda_graph: true. "):
        of_objects(settings, "cuda", {"precision.autocast": "bfloat16"})
    with pytest.warns(UserWarning, match="trainer: loop.loss_item: never. "):
        of_objects({"loop.loss_item": "never"}, "cuda", {"loop.loss_item": "every_step"})
    with warnings.catch_warnings(action="error"):  # a default has no word of the framework's
        assert of_objects({"precision.autocast": "none"}, "cuda", {"precision.autocast": "bfloat16"}) == {}
    # graphs of the compiler: to a loop that marks its steps
    with pytest.warns(UserWarning, match="trainer: compile.mode: reduce-overhead. "):
        assert of_objects({"compile.mode": "reduce-overhead"}, "cuda", {}) == {"compile.mode": "default"}


def lightning_parts(package="lightning.pytorch"):
    lightning = pytest.importorskip(package)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
            self.head = nn.Linear(8, 4)
            self.rates = []

        def training_step(self, batch, _):
            images, labels = batch
            loss = nn.functional.cross_entropy(self.head(self.body(images)).float(), labels)
            self.log("loss", loss)
            self.rates.append(self.optimizers().param_groups[0]["lr"])
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return lightning, Module


def fitted(folder, callbacks=(), package="lightning.pytorch", **options):
    lightning, make = lightning_parts(package)
    module = make()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=list(callbacks),
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )
    torch.manual_seed(1)
    samples = TensorDataset(torch.randn(16, 3, 6, 6), torch.randint(4, (16,)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The 'train_dataloader'|.*litlogger|.*checkpoint")
        trainer.fit(module, DataLoader(samples, batch_size=4))
    return trainer, module


def assert_same(model, other, **tolerances):
    torch.testing.assert_close(model.state_dict(), other.state_dict(), **tolerances)


@pytest.mark.process
def test_lightning_gets_what_it_can_be_told_and_the_rest_in_one_warning(tuned, tmp_path, eager_backend, fresh_compiler):
    from advisor.lightning import TunedCallback

    _, expected = fitted(tmp_path, precision="bf16-mixed", accumulate_grad_batches=2)
    with pytest.warns(UserWarning, match="TunedCallback cannot apply") as caught:
        trainer, module = fitted(tmp_path, [TunedCallback(tuned(SETTINGS))])
    told = [str(warning.message) for warning in caught if "TunedCallback" in str(warning.message)]
    assert len(told) == 1
    assert "data.num_workers: 1, step.zero_grad: zeros. " in told[0]
    assert "autocast" not in told[0]
    assert "accumulate" not in told[0]
    assert (trainer.precision, trainer.accumulate_grad_batches) == ("bf16-mixed", 2)
    assert module.body[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert_same(module, expected, rtol=0.1, atol=0.03)


@pytest.mark.process
@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_clips_in_mixed_precision_for_a_fused_optimizer(tuned, tmp_path, package):
    """Also where both of its packages are installed, and the script uses the other one."""
    from advisor.lightning import TunedCallback

    precisions = pytest.importorskip(f"{package}.plugins.precision")
    plugin = precisions.MixedPrecision("bf16-mixed", "cpu")
    options = {"gradient_clip_val": 1e-7, "package": package}
    _, expected = fitted(tmp_path, plugins=[plugin], **options)
    settings = tuned("optimizer.implementation: fused\nprecision.autocast: bfloat16\n")
    trainer, module = fitted(tmp_path, [TunedCallback(settings)], **options)
    assert trainer.optimizers[0].param_groups[0]["fused"] is True
    assert_same(module, expected, rtol=1e-2, atol=1e-3)


@pytest.mark.process
def test_what_the_user_told_the_trainer_stays(tuned, tmp_path):
    from advisor.lightning import TunedCallback

    with pytest.warns(UserWarning, match="trainer: precision.autocast: bfloat16"):
        trainer, _ = fitted(tmp_path, [TunedCallback(tuned("precision.autocast: bfloat16\n"))], precision="64-true")
    assert trainer.precision == "64-true"


@pytest.mark.process
@pytest.mark.parametrize(("automatic", "scheduled", "batches"), [(True, False, 2), (False, False, 1), (True, True, 1)])
def test_lightning_is_told_to_accumulate_where_it_makes_the_updates(tuned, automatic, scheduled, batches):
    """Its scheduler of accumulation refuses a Trainer that accumulates from the start."""
    from advisor.lightning import TunedCallback

    lightning, make = lightning_parts()
    callbacks = [lightning.callbacks.GradientAccumulationScheduler({1: 4})] if scheduled else []
    options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    module, trainer = make(), lightning.Trainer(callbacks=callbacks, **options)
    module.automatic_optimization = automatic
    TunedCallback(tuned("step.accumulate: 2\n")).setup(trainer, module, "fit")
    assert trainer.accumulate_grad_batches == batches


def trained_by_transformers(folder, callbacks, **options):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        vocab_size=30,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = transformers.BertForSequenceClassification(config)
    tokens = torch.randint(30, (16, 8), generator=torch.Generator().manual_seed(2))
    data = [{"input_ids": row, "labels": row[0] % 2} for row in tokens]
    args = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        learning_rate=0.01,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        max_steps=1,
        **options,
    )
    trainer = transformers.Trainer(model=model, args=args, train_dataset=data, callbacks=list(callbacks))
    trainer.train()


@pytest.mark.process
def test_what_training_arguments_have_a_name_for_is_left_to_them(tuned, tmp_path):
    pytest.importorskip("transformers")
    from advisor.transformers import TunedCallback, arguments

    path = tuned(
        "precision.autocast: bfloat16\ndata.num_workers: 1\noptimizer.implementation: foreach\nstep.accumulate: 2\n"
    )
    assert arguments(path) == {"bf16": True, "dataloader_num_workers": 1, "gradient_accumulation_steps": 2}
    with pytest.warns(UserWarning, match="TunedCallback cannot apply") as caught:
        trained_by_transformers(tmp_path, [TunedCallback(path)])
    told = next(str(warning.message) for warning in caught if "TunedCallback" in str(warning.message))
    assert all(setting in told for setting in ("precision.autocast: bfloat16", "step.accumulate: 2", "num_workers: 1"))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="TunedCallback")
        trained_by_transformers(tmp_path, [TunedCallback(path)], **arguments(path))
    # All three are on in a Trainer that is told nothing.
    off = tuned("data.pin_memory: false\nparallel.find_unused_parameters: false\nloop.loss_item: never\n")
    named = {"dataloader_pin_memory": False, "ddp_find_unused_parameters": False, "logging_nan_inf_filter": False}
    assert arguments(off) == named
