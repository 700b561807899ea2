"""The benchmark's loop, variants and tables, on a machine without a GPU."""

import time

import by_name
import experts
import plain
import pytest
import script
import torch
import variants
from catalogue import WORKLOADS
from process_state import state_put_back
from torch.utils.data import DataLoader, TensorDataset

CPU = torch.device("cpu")


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


def first_result(write):
    """The result of the first step of a loop over the twelve blocks of linear layers."""
    written = script.load(WORKLOADS["mlp12"], CPU)
    torch.manual_seed(1)
    step, data = write(written)
    return step(data)


def test_settings_and_the_plain_loop_compute_the_same(tmp_path):
    settings = tmp_path / "tuned.yaml"
    settings.write_text("step.zero_grad: zeros\n", encoding="utf-8")
    torch.testing.assert_close(
        first_result(lambda written: variants.tuned(written, settings)), first_result(variants.baseline)
    )


@pytest.mark.parametrize("who", [experts.STACK, experts.BY_HAND])
def test_an_experts_stack_computes_nearly_the_same(who):
    workload = WORKLOADS["mlp12"]
    with state_put_back(), torch.compiler.set_stance("force_eager"):
        loss = first_result(lambda written: experts.write(workload, who, written, experts.experts_of(workload)[who][1]))
    torch.testing.assert_close(loss, first_result(variants.baseline), rtol=0.02, atol=0)


def test_models_by_name_are_rendered_from_their_rows():
    row = {"model": "timm:resnet18", "mode": "train", "hardware": "H200", "versions": "torch 2.11.0", "batch": "64"}
    row |= {"as_written_ms": "12.34", "compiled_speedup": "1.5", "speedup": "2.0", "ci_low": "1.9", "ci_high": "2.1"}
    row |= {"bytes_before": str(2**31), "bytes_after": str(2**30), "settings": "step.cuda_graph: True", "failed": ""}
    failed = {"model": "hf:gone", "mode": "infer", "failed": "there is no such model"}
    text = by_name.page([row, failed])
    assert "| `timm:resnet18` | train | 64 | 12.3 ms | 1.50x | 2.00x (1.90–2.10) | 2.00 → 1.00 GiB | step." in text  # noqa: RUF001
    assert "there is no such model" in text
    assert len(by_name.TARGETS) == len(set(by_name.TARGETS)) >= 60
