"""The code of docs/own-loop.md runs with the real frameworks, and trains as without the settings."""

import copy
import re
from pathlib import Path

import pytest
import torch
from exported_module import plain_losses
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from advisor.recipe.plan import StepPlan
from advisor.step.device_loader import loop_loader
from advisor.step.tuning import Tuning

TEXT = (Path(__file__).parents[2] / "docs" / "own-loop.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^```python ?(\w*)\n(.*?)^```$", TEXT, re.M | re.S))
TUNED = "compile.mode: default\noptimizer.implementation: foreach\n"

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("eager_backend", "fresh_compiler")]


def samples():
    torch.manual_seed(1)
    return TensorDataset(torch.randn(12, 6), torch.randint(4, (12,)))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def run(framework, names, tmp_path, monkeypatch, settings=TUNED):
    pytest.importorskip(framework)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuned.yaml").write_text(settings, encoding="utf-8")
    exec(compile(BLOCKS[framework], f"docs/own-loop.md, {framework}", "exec"), names)
    return names


def assert_same(model, other, **tolerances):
    torch.testing.assert_close(model.state_dict(), other.state_dict(), **tolerances)


def test_the_code_for_lightning(tmp_path, monkeypatch):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.05)

    expected = Module()
    plain_losses(expected.net, expected.configure_optimizers(), DataLoader(samples(), batch_size=4))
    names = {"module": Module(), "train_loader": DataLoader(samples(), batch_size=4)}
    assert_same(run("lightning", names, tmp_path, monkeypatch)["module"], expected)


def test_settings_for_several_gpus_train_on_one_device_without_torchrun(tmp_path, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    model, expected = net(), net()
    names = {"loss": nn.functional.cross_entropy, "loader": DataLoader(samples(), batch_size=4)}
    names |= {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.05)}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuned.yaml").write_text("parallel.strategy: ddp\n", encoding="utf-8")
    with pytest.warns(UserWarning, match="torchrun"):
        exec(compile(BLOCKS[""], "docs/own-loop.md", "exec"), names)
    optimizer = torch.optim.AdamW(expected.parameters(), lr=0.05)
    plain_losses(expected, optimizer, DataLoader(samples(), batch_size=4))
    assert_same(model, expected)


def test_the_code_for_transformers(tmp_path, monkeypatch):
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x, labels):
            output = self.net(x)
            return {"loss": nn.functional.cross_entropy(output, labels), "logits": output}

    dataset = [{"x": x, "labels": label} for x, label in samples()]
    trained = []
    for settings in ("{}\n", TUNED):
        names = run("transformers", {"model": Classifier(), "dataset": dataset}, tmp_path, monkeypatch, settings)
        trained.append(names["model"])
    assert_same(*trained)


def test_the_code_for_accelerate(tmp_path, monkeypatch):
    trained = []
    for settings in ("{}\n", TUNED):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        names = {"model": model, "optimizer": optimizer, "loader": DataLoader(samples(), batch_size=4)}
        names |= {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "loss_fn": nn.CrossEntropyLoss()}
        names = run("accelerate", names, tmp_path, monkeypatch, settings)
        assert names["accelerator"].unwrap_model(names["model"]) is model
        trained.append((copy.deepcopy(model), optimizer.param_groups[0]["lr"]))
    assert trained[0][1] == trained[1][1]
    assert_same(trained[0][0], trained[1][0], rtol=1e-3, atol=1e-4)
    assert optimizer.param_groups[0]["foreach"] is True
    assert (tmp_path / "checkpoint" / "model.safetensors").exists()


def test_an_optimizer_that_accelerate_wrapped_is_tuned_inside():
    accelerate = pytest.importorskip("accelerate")

    model = net()
    inner = torch.optim.AdamW(model.parameters())
    model, wrapped = accelerate.Accelerator(cpu=True).prepare(model, inner)
    _, back = Tuning({"optimizer.implementation": "foreach"}).prepare(model, wrapped)
    assert back is wrapped
    assert inner.param_groups[0]["foreach"] is True


def syncs_of(make_loader, epochs=2):
    """Per batch, whether Accelerate updates; three batches in an epoch, and two to an update."""
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, loader = net(), make_loader(accelerator)
    found = []
    for _ in range(epochs):
        for inputs, _ in loader:
            with accelerator.accumulate(model):
                found.append((accelerator.sync_gradients, len(accelerator.gather_for_metrics(inputs))))
    return found


def test_accelerate_sees_the_end_of_a_loader_whose_batches_arrive_on_the_device():
    plan = StepPlan(mode="train", device="cpu", device_prefetch=True)
    loader = DataLoader(samples(), batch_size=5)
    expected = syncs_of(lambda accelerator: accelerator.prepare(loader))
    assert expected == 2 * [(False, 5), (True, 5), (True, 2)]
    assert syncs_of(lambda accelerator: loop_loader(accelerator.prepare(loader), plan)) == expected
