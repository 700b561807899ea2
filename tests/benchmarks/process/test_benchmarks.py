"""The benchmark's loop, variants, sessions, lanes and tables, at sizes for a machine without a GPU."""

import time

import by_name
import expert
import experts
import plain
import pytest
import script
import torch
import variants
from catalogue import SMALL_NAMES, WORKLOADS, small
from process_state import state_put_back
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

CPU = torch.device("cpu")
# Images are run below, by their layout.
EXPERTS = [(name, experts.STACK) for name in SMALL_NAMES if name not in ("small_resnet18", "r3d", "jpeg")]
EXPERTS += [(name, experts.BY_HAND) for name in ("autoencoder", "jpeg128", "infer1")]


def small_script(name):
    if name.startswith(("bert", "llama")):
        pytest.importorskip("transformers")
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


def test_folded_norms_and_bytes_scaled_later_compute_the_same():
    written = small_script("infer1")
    folded = experts.folded(written)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in folded.model.modules())
    torch.testing.assert_close(folded.model(*written.data), written.model(*written.data), rtol=1e-3, atol=1e-4)
    images = torch.randint(256, (2, 3, 4, 4), dtype=torch.uint8)
    normalize = small_script("jpeg").data.dataset.transform.transforms[-1]
    scaled = experts.Scale(normalize.mean, normalize.std)(images)
    torch.testing.assert_close(scaled, normalize(images.float() / 255))


@pytest.mark.parametrize("name", ["mlp12", "jpeg128", "bert", "bert_infer8"])
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


def test_models_by_name_are_rendered_from_their_rows():
    row = {"model": "timm:resnet18", "mode": "train", "hardware": "H200", "versions": "torch 2.11.0", "batch": "64"}
    row |= {"as_written_ms": "12.34", "compiled_speedup": "1.5", "speedup": "2.0", "ci_low": "1.9", "ci_high": "2.1"}
    row |= {"bytes_before": str(2**31), "bytes_after": str(2**30), "settings": "step.cuda_graph: True", "failed": ""}
    failed = {"model": "hf:gone", "mode": "infer", "failed": "there is no such model"}
    text = by_name.page([row, failed])
    assert "| `timm:resnet18` | train | 64 | 12.3 ms | 1.50x | 2.00x (1.90–2.10) | 2.00 → 1.00 GiB | step." in text  # noqa: RUF001
    assert "there is no such model" in text
    assert len(by_name.TARGETS) == len(set(by_name.TARGETS)) >= 60
