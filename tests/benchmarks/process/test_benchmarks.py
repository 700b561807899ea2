"""The benchmark's loop, variants, sessions, lanes and tables, at sizes for a machine without a GPU."""

import functools
import os
import time
from pathlib import Path

import expert
import experts
import plain
import pytest
import script
import torch
import variants
from catalogue import WORKLOADS, chosen, small
from process_state import state_put_back
from processes import FailedError, run_apart
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

BENCHMARK = Path(__file__).parents[1] / "benchmark.py"
CPU = torch.device("cpu")
# One workload of each target, and each change that is made by hand: the rest differs by what a GPU compiles.
TARGETS = {(workload.target, workload.trains): name for name, workload in reversed(WORKLOADS.items())}
EXPERTS = [(name, experts.STACK) for name in reversed(TARGETS.values())]
EXPERTS += [(name, experts.BY_HAND) for name in ("autoencoder", "jpeg128", "infer1")]


@functools.cache
def missing_library(name):
    """The library that a workload needs and that is not installed here, if any."""
    try:
        script.module_of(WORKLOADS[name].file)
    except ModuleNotFoundError as error:
        return error.name
    except RuntimeError as error:  # a library that was built for another torch
        return str(error)
    return None


def small_script(name):
    if library := missing_library(name):
        pytest.skip(f"{library} is not installed")
    return script.load(small(WORKLOADS[name]), CPU)


def first_batch(data):
    return next(iter(data)) if isinstance(data, DataLoader) else data


# --- the loop -------------------------------------------------------------------------------------------------


def test_a_step_on_one_batch_is_timed():
    timed = plain.time_loop(lambda batch: time.sleep(0.01) or batch[0], (torch.zeros(1),), timed_s=0.1)
    assert 10 <= timed.step_ms < 30
    assert len(timed.blocks_ms) >= plain.LEAST_BLOCKS
    assert timed.warmup_s >= 0.01 * plain.FIRST_STEPS


def test_a_block_of_a_loader_is_an_epoch():
    batches = []
    loader = DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2)
    timed = plain.time_loop(lambda batch: batches.append(batch) or batch[0], loader, timed_s=0.0)
    assert len(batches) >= 3 * plain.LEAST_BLOCKS
    assert len(batches) % 3 == 0
    assert len(timed.blocks_ms) == plain.LEAST_BLOCKS


def test_a_long_epoch_is_a_block_and_two_are_enough(monkeypatch):
    monkeypatch.setattr(plain, "LONG_EPOCH_S", 0.01)
    loader = DataLoader(TensorDataset(torch.arange(2.0)), batch_size=1)
    steps = []
    timed = plain.time_loop(lambda batch: time.sleep(0.01) or steps.append(batch) or batch[0], loader, timed_s=0.0)
    assert len(timed.blocks_ms) == plain.LEAST_LONG_EPOCHS
    assert len(steps) == 2 * (2 + plain.LEAST_LONG_EPOCHS)


@pytest.mark.parametrize("result", [torch.tensor(float("nan")), {"loss": torch.tensor([1.0, float("inf")])}])
def test_a_result_that_is_not_finite_has_no_time(result):
    with pytest.raises(FloatingPointError):
        plain.time_loop(lambda batch: result, (torch.zeros(1),), timed_s=0.0)


# --- the workloads and their variants -------------------------------------------------------------------------


def test_there_are_enough_workloads_of_enough_families():
    assert len(WORKLOADS) >= 24
    assert len({workload.family for workload in WORKLOADS.values()}) >= 9


def test_workloads_are_chosen_by_name_and_by_family():
    assert [workload.name for workload in chosen(["video", "mlp12", "r3d"])] == ["r3d", "mlp12"]
    assert len(chosen([])) == len(WORKLOADS)
    with pytest.raises(KeyError):
        chosen(["nothing"])


@pytest.mark.parametrize(("name", "who"), EXPERTS)
def test_an_expert_trains_as_the_script_does(name, who):
    """The stack runs on every workload, and its optimizer is the script's but for its implementation."""
    used = []
    written = small_script(name)
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: used.append(optimizer))
    try:
        with state_put_back(), torch.compiler.set_stance("force_eager"):
            choices = experts.stacks_of(WORKLOADS[name], who)[0]
            step, data = experts.write(WORKLOADS[name], who, written, choices)
            result = step(first_batch(data))
    except RuntimeError as error:
        if "primitive descriptor for the LSTM" in str(error) and torch.backends.cpu.get_cpu_capability() == "AVX2":
            pytest.skip("oneDNN has no LSTM in bfloat16 for this processor")
        raise
    finally:
        hook.remove()
    assert plain._finite(result)
    assert bool(used) == written.trains
    if written.trains:
        optimizer = written.make_optimizer(written.model.parameters())
        assert hyperparameters(used[0]) == hyperparameters(optimizer)
        assert type(used[0]) is type(optimizer)


def hyperparameters(optimizer):
    how = ("params", "fused", "foreach", "capturable")
    return [{key: value for key, value in group.items() if key not in how} for group in optimizer.param_groups]


@pytest.mark.parametrize("name", ["small_resnet18", "r3d"])
def test_images_and_convolutions_are_channels_last(name):
    written, seen = small_script(name), []
    written.model.register_forward_pre_hook(lambda model, inputs: seen.append(inputs[0]))
    with state_put_back():
        step, data = expert.write_stack(written, expert.Choices(compile_mode="", graph=False))
        step(data)
    layout = torch.channels_last if name == "small_resnet18" else torch.channels_last_3d
    assert seen[0].is_contiguous(memory_format=layout)
    weights = [p for p in written.model.parameters() if p.ndim == seen[0].ndim and min(p.shape[1:]) > 1]
    assert weights
    assert all(weight.is_contiguous(memory_format=layout) for weight in weights)


def test_a_stack_is_weakened_part_by_part():
    weaker = [(bool(choices.compile_mode), choices.graph) for choices in expert.Choices().weaker()]
    assert weaker == [(True, False), (False, True), (False, False)]


def test_folded_norms_and_bytes_scaled_later_compute_the_same():
    written = small_script("infer1")
    folded = experts.folded(written)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in folded.model.modules())
    torch.testing.assert_close(folded.model(*written.data), written.model(*written.data), rtol=1e-3, atol=1e-4)
    images = torch.randint(256, (2, 3, 4, 4), dtype=torch.uint8)
    normalize = small_script("jpeg").data.dataset.transform.transforms[-1]
    scaled = experts.Scale(normalize.mean, normalize.std)(images)
    torch.testing.assert_close(scaled, normalize(images.float() / 255))


@pytest.mark.parametrize("name", ["mlp12", "infer1", "jpeg128", "fcos", "bert", "bert_infer8"])
def test_settings_and_the_plain_loop_compute_the_same(name, tmp_path):
    settings = tmp_path / "tuned.yaml"
    settings.write_text("step.zero_grad: zeros\ninfer.grad: no_grad\n", encoding="utf-8")
    results = []
    for variant in (variants.baseline, lambda written: variants.tuned(written, settings)):
        written = small_script(name)
        torch.manual_seed(1)
        step, data = variant(written)
        results.append(step(first_batch(data)))
    torch.testing.assert_close(*(list(torch.utils._pytree.tree_leaves(result)) for result in results))


def test_inference_has_the_batch_that_was_asked_for():
    workload = WORKLOADS["infer128"]
    inputs = torch.arange(3.0)
    (repeated,) = script._inputs((inputs, None), workload.batch_size)
    assert len(repeated) == 128
    assert repeated[:4].tolist() == [0, 1, 2, 0]
    assert len(small_script("infer1").data[0]) == 1


@pytest.mark.parametrize(
    ("workload", "name"), [("resnet50", "sgd"), ("mlp12", "adam"), ("gpt2", "adamw"), ("small_resnet18", "")]
)
def test_the_peer_is_given_an_optimizers_name_where_it_means_the_same(workload, name):
    written = small_script(workload)
    assert variants._name_of(written.make_optimizer(written.model.parameters())) == name


# --- processes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [False, True])
def test_a_process_has_its_environment(tmp_path, fresh):
    apart = {"environment": {"OF_THE_CHILD": "1"}, "fresh": fresh, "log": tmp_path / "log", "limit_s": 60.0}
    assert run_apart(os.getenv, "OF_THE_CHILD", **apart) == "1"
    assert "OF_THE_CHILD" not in os.environ


@pytest.mark.parametrize(
    ("function", "argument", "reason"),
    [(time.sleep, 60, "took longer than 1 s"), (os._exit, 3, "exit code 3"), (int, "x", "ValueError: invalid literal")],
)
def test_a_process_that_fails_says_why(tmp_path, function, argument, reason):
    with pytest.raises(FailedError, match=reason):
        run_apart(function, argument, environment={}, log=tmp_path / "log", limit_s=1.0)


def test_what_a_process_started_ends_with_it(tmp_path):
    id_file = tmp_path / "id"
    run_apart(os.system, f"sleep 60 & echo $! > {id_file}", environment={}, log=tmp_path / "log", limit_s=30.0)
    state = Path("/proc", id_file.read_text().strip(), "stat")
    deadline = time.monotonic() + 5
    while state.exists() and state.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not state.exists() or state.read_text().split()[2] == "Z"
