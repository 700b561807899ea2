"""The recipe for the attention kernel."""

import pytest
import torch
from facts import cpu_facts, gpu_facts, profile_facts
from proposals import proposed, reason
from small_decoder import Decoder, applied, batches, both_steps, both_ways, exported, losses, parts
from torch.profiler import profile

from advisor.records import Mode

ATTENTION = {"attention": 2, "linear": 4}
SDPA_CALL = profile_facts(called=("attention",))


def attention_calls(step, batch):
    """How often a step computes attention with flash, and how often with products and a softmax."""
    with profile() as recorded:
        step(batch)
    counts = {row.key: row.count for row in recorded.key_averages()}
    flash = counts.get("aten::_scaled_dot_product_flash_attention_for_cpu", 0)
    return flash, counts.get("aten::_softmax", 0) + counts.get("aten::_safe_softmax", 0)


@both_steps
@pytest.mark.parametrize("mode", list(Mode))
def test_only_the_chosen_kernel_runs(step_of, mode):
    batch = batches(1)[0] if mode is Mode.TRAIN else batches(1)[0][0]
    flash_calls, softmaxes = attention_calls(step_of({"attention.backend": "flash"}, mode), batch)
    assert (flash_calls, softmaxes) == (1, 0)
    flash_calls, softmaxes = attention_calls(step_of({"attention.backend": "math"}, mode), batch)
    assert flash_calls == 0
    assert softmaxes


@both_steps
def test_what_is_computed_again_in_the_backward_pass_uses_the_same_kernel(step_of):
    step = step_of({"attention.backend": "math"}, model=Decoder(checkpointed=True))
    flash_calls, _ = attention_calls(step, batches(1)[0])
    assert flash_calls == 0
    step = step_of({}, model=Decoder(checkpointed=True))
    flash_calls, softmaxes = attention_calls(step, batches(1)[0])
    assert (flash_calls, softmaxes) == (2, 0)


@both_steps
def test_the_kernels_agree_and_leave_nothing_behind(step_of):
    expected = losses(step_of({}))
    assert losses(step_of({"attention.backend": "math"})) == pytest.approx(expected, rel=1e-5)
    assert torch.backends.cuda.flash_sdp_enabled()


@both_ways
def test_auto_permits_all_kernels_again(effect):
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    effect("sdpa", "auto", parts())
    assert torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_kernels_by_device_and_type():
    assert proposed("sdpa", cpu_facts(families=ATTENTION)) == ["flash", "math"]
    assert proposed("sdpa", gpu_facts(profile=SDPA_CALL)) == ["efficient", "math"]
    in_half = ["flash", "cudnn", "efficient", "math"]
    assert proposed("sdpa", gpu_facts(families=ATTENTION, parameter_dtypes=("bfloat16",))) == in_half
    autocast = gpu_facts(families=ATTENTION, current={"precision.autocast": "float16"})
    assert proposed("sdpa", autocast) == in_half
    older = gpu_facts(families=ATTENTION, parameter_dtypes=("float16",), capability=(7, 5))
    assert proposed("sdpa", older) == ["efficient", "math"]
    assert "no scaled_dot_product_attention" in reason("sdpa", gpu_facts(profile=profile_facts()))
    chosen = gpu_facts(families=ATTENTION, current={"attention.backend": "math"})
    assert proposed("sdpa", chosen) == ["efficient", "auto"]


@pytest.mark.compile
@pytest.mark.usefixtures("fresh_compiler", "flags_kept")
def test_a_compiled_step_is_not_served_another_kernel_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    inputs, flash_calls = batches(1)[0][0], []
    for backend, step_of in (("auto", applied), ("math", applied), ("math", exported)):
        monkeypatch.setattr("torch._functorch.config.enable_autograd_cache", True)  # as in a process of its own
        torch._dynamo.reset()
        step = step_of({"compile.mode": "default", "infer.grad": "no_grad", "attention.backend": backend}, Mode.INFER)
        step(inputs)
        flash_calls.append(attention_calls(step, inputs)[0])
    assert flash_calls == [1, 0, 0]
