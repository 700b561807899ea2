"""Loops that a framework runs: what a person hands to it was prepared."""

import logging
import tempfile
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from loops.networks import EPOCHS, VOCABULARY, features, loader, mlp, tokens
from loops.register import training


@training("loader", "workers", "framework")
def accelerate(run):
    """Accelerate's loop, with accumulation and clipping by its methods."""
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=run.device.type == "cpu", gradient_accumulation_steps=2)
    model = mlp().to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=25)
    prepared = run.prepare(model, optimizer, loader(features()), scheduler)
    model, optimizer, batches, scheduler = accelerator.prepare(*prepared)
    model.train()
    for _ in range(EPOCHS):
        for inputs, labels in batches:
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            run.note("loss", loss)
            run.note_rates(optimizer)
    return {"model": accelerator.unwrap_model(model), "optimizer": optimizer.optimizer}


@training("framework")
def lightning(run):
    """A LightningModule whose ``configure_optimizers`` prepares the network and its optimizer."""
    return fitted(run, run.prepare, [])


@training("framework")
def lightning_callback(run):
    """A LightningModule as it is, with a callback for the Trainer."""
    with tempfile.TemporaryDirectory() as folder:
        return fitted(run, lambda *objects: objects, run.callbacks("lightning", folder))


def fitted(run, prepare, callbacks):
    """What Lightning's Trainer makes of a small network."""
    lightning = pytest.importorskip("lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def training_step(self, batch, _):
            inputs, labels = batch
            loss = functional.cross_entropy(self.net(inputs), labels)
            run.note("loss", loss)
            return loss

        def validation_step(self, batch, _):
            run.note("held out", self.net(batch[0]))

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01)
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=51)
            self.net, optimizer, scheduler = prepare(self.net, optimizer, scheduler)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    module = Classifier()
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="gpu" if run.device.type == "cuda" else "cpu",
        devices=1,
        gradient_clip_val=1.0,
        callbacks=callbacks,
        check_val_every_n_epoch=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings("ignore", message=".*smaller than the logging interval.*")
        trainer.fit(module, loader(features()), loader(features(16), shuffle=False))
    return {"model": module.net, "module": module, "optimizer": trainer.optimizers[0]}


@training("framework", "attention", "blocks")
def transformers_trainer(run):
    """The Trainer of Hugging Face with a model, optimizer and scheduler that were prepared."""
    return trained(run, run.prepare, [])


@training("framework", "attention", "blocks")
def transformers_callback(run):
    """The Trainer of Hugging Face with a callback."""
    with tempfile.TemporaryDirectory() as folder:
        return trained(run, lambda *objects: objects, run.callbacks("transformers", folder))


def trained(run, prepare, callbacks):
    """What Hugging Face's Trainer makes of a small language model."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(8)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    model = transformers.GPT2LMHeadModel(config).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    scheduler = transformers.get_linear_schedule_with_warmup(optimizer, 3, 25)
    model, optimizer, scheduler = prepare(model, optimizer, scheduler)
    rows = [{"input_ids": row, "labels": row} for row in tokens()]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=25,
            per_device_train_batch_size=8,
            use_cpu=run.device.type == "cpu",
            logging_steps=5,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=1,
        )
        trainer = transformers.Trainer(
            model, arguments, train_dataset=rows, optimizers=(optimizer, scheduler), callbacks=callbacks
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    for entry in trainer.state.log_history:
        if "loss" in entry:
            run.note("loss", float(entry["loss"]))
            run.note("rates", [float(entry["learning_rate"])])
    return {"model": model, "optimizer": optimizer}


@training("loader", "framework")
def fabric(run):
    """Lightning Fabric: its ``setup`` after ``prepare``, its ``backward``."""
    fabric_module = pytest.importorskip("lightning.fabric")
    fabric = fabric_module.Fabric(accelerator="cuda" if run.device.type == "cuda" else "cpu", devices=1)
    model = mlp().to(run.device)
    model, optimizer, batches = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader(features()))
    model, optimizer = fabric.setup(model, optimizer)
    batches = fabric.setup_dataloaders(batches)
    criterion = nn.CrossEntropyLoss()
    model.train()
    for _ in range(EPOCHS):
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            fabric.backward(loss)
            optimizer.step()
            run.note("loss", loss)
    return {"model": model.module, "optimizer": optimizer.optimizer}
