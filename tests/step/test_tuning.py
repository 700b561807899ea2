import copy

import pytest
import torch
from exported_module import module_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from advisor.recipe.catalog import load_catalog
from advisor.step.tuning import Tuning


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loader():
    torch.manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(24, 3, 8, 8), torch.randint(4, (24,))), batch_size=8)


def test_a_file_from_a_gpu_works_on_the_cpu(model):
    tuning = Tuning({"step.cuda_graph": True, "data.pin_memory": True, "backends.cudnn_benchmark": True})
    model, optimizer, batches = tuning.prepare(model, optimizer_of(model), loader())
    assert torch.isfinite(tuning.train_step(model, optimizer, nn.CrossEntropyLoss())(next(iter(batches))))
    assert torch.backends.cudnn.benchmark is False


def test_what_is_missing_is_said(model):
    tuning = Tuning({})
    for objects in ((loader(),), (optimizer_of(model),), ()):
        with pytest.raises(TypeError, match=r"prepare\(\)"):
            tuning.prepare(*objects)
    with pytest.raises(RuntimeError, match="has not been prepared"):
        tuning.train_step(model, optimizer_of(model))
    tuning.prepare(model)
    with pytest.raises(RuntimeError, match="pass the optimizer too"):
        tuning.train_step(model, optimizer_of(model), nn.CrossEntropyLoss())


def test_inference_prepares_the_model(model):
    step = Tuning({"precision.autocast": "bfloat16", "infer.grad": "inference_mode"}).infer(model)
    output = step(torch.randn(2, 3, 8, 8))
    assert output.dtype == torch.bfloat16
    assert output.is_inference()
    assert not model.training


class Frozen(nn.Module):
    """Has a normalisation whose statistics are frozen in evaluation mode, and one whose are not."""

    def __init__(self):
        super().__init__()
        self.frozen, self.norm, self.head = nn.BatchNorm2d(3), nn.BatchNorm2d(3), nn.Linear(3, 4)
        self.frozen.eval()

    def forward(self, x):
        return self.head(self.norm(self.frozen(x)).mean((2, 3)))


def test_an_inference_step_leaves_a_training_model_its_modes_and_its_statistics():
    tuning = Tuning({"infer.grad": "inference_mode"})
    model, optimizer, batches = tuning.prepare(model := Frozen(), optimizer_of(model), loader())
    tuning.train_step(model, optimizer, nn.CrossEntropyLoss())(next(iter(batches)))
    before = copy.deepcopy(model.state_dict())
    assert tuning.infer(model)(next(iter(batches))[0]).is_inference()
    assert (model.training, model.frozen.training, model.norm.training) == (True, False, True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("way", ["prepared", "exported", "own step"])
def test_without_a_setting_for_it_gradients_are_recorded_where_the_loop_has_them_recorded(model, way):
    batch, tuning = next(iter(loader()))[0], Tuning({})
    if way == "exported":
        step = module_of(load_catalog(), {}, "infer").infer_step(model)
    else:
        tuning.prepare(model)
        step = tuning.infer(model) if way == "prepared" else tuning.own_step(model, model)
    with torch.no_grad():
        assert not step(batch).requires_grad
    with torch.inference_mode():
        assert step(batch).is_inference()
    assert step(batch).requires_grad


def test_an_inference_step_changes_nothing_of_a_model_that_is_trained(model):
    before = copy.deepcopy(model.state_dict())
    tuning = Tuning({"model.fold_batch_norm": True, "infer.grad": "no_grad"})
    norm = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), model)
    prepared, _ = tuning.prepare(norm, optimizer_of(norm))
    assert not tuning.infer(prepared)(torch.ones(2, 3, 8, 8)).requires_grad
    assert isinstance(prepared[1], nn.BatchNorm2d)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_training_step_keeps_layers_that_are_frozen():
    model = Frozen()
    tuning = Tuning({})
    model, optimizer = tuning.prepare(model, optimizer_of(model))
    tuning.train_step(model, optimizer, nn.CrossEntropyLoss())
    assert not model.frozen.training
    model.eval()
    tuning.train_step(model, optimizer, nn.CrossEntropyLoss())
    assert model.training


def test_the_scaler_can_be_reached_saved_and_loaded(model):
    tuning = Tuning({"precision.autocast": "float16", "step.accumulate": 2})
    model, optimizer = tuning.prepare(model, optimizer_of(model))
    step = tuning.train_step(model, optimizer, nn.CrossEntropyLoss())
    for _ in range(3):
        step(next(iter(loader())))
    step.scaler.update(64.0)
    saved = step.state_dict()
    assert saved["accumulated"] == 1
    other = tuning.train_step(model, optimizer, nn.CrossEntropyLoss())
    other.load_state_dict(saved)
    assert other.scaler.get_scale() == step.scaler.get_scale() == 64.0
    assert other.state_dict() == saved
    plain = Tuning({})
    model, optimizer = plain.prepare(nn.Linear(2, 2), optimizer_of(nn.Linear(2, 2)))
    plain_step = plain.train_step(model, optimizer)
    plain_step.load_state_dict(saved)  # another precision: no scaler to load into
    assert plain_step.scaler is None
    assert plain_step.state_dict() == {"scaler": None, "accumulated": 0}


def in_fabric(model):
    return pytest.importorskip("lightning.fabric").Fabric(accelerator="cpu", devices=1).setup_module(model)


@pytest.mark.parametrize(
    "wrap",
    [
        nn.DataParallel,
        pytest.param(lambda model: torch.compile(model, backend="eager"), marks=pytest.mark.compile),
        pytest.param(in_fabric, marks=pytest.mark.process),
    ],
)
def test_a_model_that_was_wrapped_after_it_was_prepared_is_the_prepared_one(wrap):
    """To evaluate with it does not end its training, as it would for a model of which nothing is known."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuning = Tuning({"step.zero_grad": "manual"})
    model, optimizer = tuning.prepare(model, optimizer)
    wrapped = wrap(model)
    step, evaluate = tuning.train_step(wrapped, optimizer, nn.functional.cross_entropy), tuning.infer(wrapped)
    batch = torch.randn(6, 4), torch.arange(6) % 3
    losses = [float(step(batch)), evaluate(batch[0]).sum(), float(step(batch))]
    assert losses[2] < losses[0]
    assert wrapped.training
    assert model[1].training
    assert model[1].num_batches_tracked == 2
    assert tuning.own_step(lambda given: wrapped(given[0]), wrapped)(batch).shape == (6, 3)
