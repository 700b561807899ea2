"""PyTorch's modes of a paused script stay its own."""

import torch

from advisor.workloads.scripts.running import Script


def test_the_inference_mode_of_a_paused_script_is_its_own():
    seen = []

    def run():
        with torch.inference_mode():
            for _ in range(3):
                seen.append((torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
                script.pause()

    script = Script(run)
    while script.go_on():
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()
        (2 * torch.ones(1, requires_grad=True)).backward()
    assert seen == [(True, False)] * 3
    assert not torch.is_inference_mode_enabled()
