"""Scripts that only call their model: several times for a batch, or in a thread."""

from __future__ import annotations

import pytest
import torch

from advisor.errors import TargetError
from advisor.records import Mode


def test_the_call_with_the_batch_is_found_among_several(script):
    loop, _ = script(
        """
        model.eval()
        with torch.no_grad():
            for x, y in loader:
                both = (model(x) + model(-x)) / 2
        """
    )
    assert loop.mode is Mode.INFER
    assert any("several times for a batch" in note for note in loop.notes)


def test_one_call_for_each_batch_needs_no_note(script):
    loop, _ = script("with torch.no_grad():\n    for x, y in loader:\n        model(x)\n")
    assert not any("several times" in note for note in loop.notes)


def test_a_model_that_no_batch_reaches_as_it_is_has_no_loop(script):
    with pytest.raises(TargetError, match="called with something else than a batch"):
        script("with torch.no_grad():\n    for x, y in loader:\n        model(-x)\n")


def test_a_model_that_is_called_in_a_thread_is_told(script):
    with pytest.raises(TargetError) as failure:
        script(
            """
            import threading
            thread = threading.Thread(target=lambda: seen.append(model(numbers)))
            thread.start()
            thread.join()
            """
        )
    assert failure.value.message == "train.py calls its model in a thread of its own, which is not watched."
    assert "train.py:build" in failure.value.hint
    assert isinstance(vars(__import__("__main__"))["seen"][0], torch.Tensor)
