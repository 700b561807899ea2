"""Settings for several GPUs: exported, and applied outside torchrun."""

import sys
from types import SimpleNamespace

import pytest
import torch
import yaml
from graphed_steps import agree, batches, graphed, net, of_model, plain, sgd
from project_configs import CONFIGS
from sample_session import sample_history, sample_request
from torch import distributed, nn
from torch.distributed.run import get_args_parser
from torch.utils.data import DataLoader, TensorDataset

from advisor.experiment.events import ScalingMeasured
from advisor.experiment.request import Outputs
from advisor.experiment.scaling_records import ScalingRecord
from advisor.experiment.state import SessionState
from advisor.export.outputs import write_outputs
from advisor.recipe.catalog import load_catalog
from advisor.recipe.plan import StepPlan
from advisor.step.graph import WARM_UP_STEPS_OF_DDP
from advisor.step.spread import spread_model
from advisor.step.tuning import Tuning

DDP = {"parallel.strategy": "ddp", "parallel.gradient_as_bucket_view": True}


@pytest.fixture
def objects():
    model = nn.Linear(4, 2)
    data = TensorDataset(torch.randn(6, 4), torch.randint(2, (6,)))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, batch_size=2)


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}])
def test_a_step_over_ranks_is_captured_after_the_steps_that_ddp_times(options, one_rank):
    """The ways around a graph of PyTorch's wrapper; how a GPU's graph holds the exchange, tests/gpu shows."""
    counts, factors = torch.int32, torch.float64  # of which parameters are used, and by the number of ranks
    found = []
    for spreads in (False, True):
        model = net()
        optimizer = sgd(model.parameters())
        step = plain(model, optimizer, of_model)
        if spreads:
            wrapped = spread_model(model, None, StepPlan(mode="train", device="cpu", strategy="ddp", **options))
            step = graphed(wrapped, optimizer, of_host=(counts, factors))
        losses = []
        for at, batch in enumerate(batches(20)):
            losses.append(step(batch).item())
            assert not spreads or step.captured == (at >= WARM_UP_STEPS_OF_DDP)
        found.append((losses, model.state_dict()))
    agree(found)


def exported(path, *, carried=None, settings=None, config=None, gpus=2, machines=1):
    """The sentences about an export of the sample session, after its stack was measured on two GPUs."""
    state = SessionState.of(sample_history())
    carried = state.stack_settings if carried is None else carried
    settings = DDP if settings is None else settings
    record = ScalingRecord(gpus, "cuda", carried, best="ddp", settings=settings, machines=machines)
    state.apply(ScalingMeasured(record))
    outputs = Outputs(export_path=str(path), config_path=str(config) if config else None)
    written = write_outputs(state, sample_request(), outputs, load_catalog())
    assert not written.errors
    return written.sentences


@pytest.mark.parametrize("name", ["tuned.yaml", "tuned.py"])
def test_what_won_on_several_gpus_is_exported_with_the_command_that_starts_it(name, tmp_path):
    told = exported(tmp_path / name)
    assert "  torchrun --standalone --nproc-per-node 2 your_script.py" in told
    assert "A batch of 64 is for all 2 processes together: 32 samples in each." in told
    text = (tmp_path / name).read_text()
    assert "parallel.gradient_as_bucket_view: true" in text
    assert "not measured together" not in text
    assert "precision.autocast: bfloat16" in text


@pytest.mark.parametrize(("gpus", "machines"), [(2, 1), (16, 2)])
def test_torchrun_takes_the_command_that_starts_it_on_each_machine(tmp_path, gpus, machines):
    told = exported(tmp_path / "new.yaml", config=CONFIGS["accelerate_default.yaml"], gpus=gpus, machines=machines)
    exported(tmp_path / "tuned.yaml", gpus=gpus, machines=machines)
    (command,) = [line.strip() for line in told if line.startswith("  torchrun")]
    assert f"# start: {command}\n" in (tmp_path / "tuned.yaml").read_text()
    options = get_args_parser().parse_args(command.split()[1:])
    assert (options.nproc_per_node, options.nnodes) == (str(gpus // machines), "1:1" if machines == 1 else "2")
    assert (options.standalone, options.rdzv_endpoint) == ((True, "") if machines == 1 else (False, "HOST:PORT"))
    written = yaml.safe_load((tmp_path / "new.yaml").read_text())
    assert (written["num_processes"], written["num_machines"]) == (gpus, machines)


@pytest.mark.parametrize("options", [{"settings": {}}, {"carried": {"precision.autocast": "float16"}}])
def test_one_gpu_s_settings_are_exported_where_several_were_no_faster_or_were_measured_with_others(tmp_path, options):
    exported(tmp_path / "tuned.yaml", **options)
    assert "parallel" not in (tmp_path / "tuned.yaml").read_text()


def test_outside_torchrun_one_warning_says_why_one_device_is_used(objects, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    tuning = Tuning(DDP)
    with pytest.warns(UserWarning, match="Start the script with `torchrun") as told:
        prepared, step_of = tuning.prepare(*objects), tuning.train_step
    (one,) = [one for one in told if "torchrun" in str(one.message)]
    assert one.filename == __file__
    assert prepared == objects
    step = step_of(*prepared[:2], nn.CrossEntropyLoss())
    assert all(torch.isfinite(step(batch)) for batch in prepared[2])
    assert not distributed.is_initialized()


def test_beside_an_accelerator_the_model_is_left_to_it(objects, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "accelerate.state", SimpleNamespace(is_initialized=lambda: True))
    with pytest.warns(UserWarning, match="left to Accelerate"):
        assert Tuning(DDP).prepare(*objects) == objects
    assert not distributed.is_initialized()


def test_a_model_that_is_spread_already_stays_as_it_is(one_rank, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    wrapped = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
    with pytest.warns(UserWarning, match="already spread"):
        model, _ = Tuning(DDP).prepare(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.1))
    assert model is wrapped


def test_the_model_comes_back_in_pytorch_s_wrapper_and_is_evaluated_without_it(one_rank, objects, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    tuning = Tuning(DDP)
    model, optimizer, loader = tuning.prepare(*objects)
    assert isinstance(model, nn.parallel.DistributedDataParallel)
    assert model.module is objects[0]
    step = tuning.train_step(model, optimizer, nn.CrossEntropyLoss())
    assert all(torch.isfinite(step(batch)) for batch in loader)
    model.register_forward_pre_hook(lambda *_: pytest.fail("the wrapper was called"))
    assert tuning.infer(model)(torch.ones(3, 4)).shape == (3, 2)


def test_a_model_that_its_owner_spread_is_prepared_and_trains(one_rank):
    wrapped = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
    tuning = Tuning({"optimizer.implementation": "foreach"})
    model, optimizer = tuning.prepare(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.1))
    assert (model, optimizer.param_groups[0]["foreach"]) == (wrapped, True)
    step = tuning.train_step(model, optimizer, nn.functional.cross_entropy)
    batch = torch.randn(6, 4), torch.randint(2, (6,))
    losses = [float(step(batch)) for _ in range(5)]
    assert losses[-1] < losses[0]
