"""What recipes promise of the numbers, kept on a GPU: every value beside the same steps without it."""

import functools

import pytest
import torch
from process_state import state_put_back
from recipe_workload import refusal
from test_recipes_kept_promises import OF_ADAM, cases, components, kept, run

from advisor.records import Mode

pytestmark = pytest.mark.gpu  # some of cases() have pytest.mark.compile or pytest.mark.process as well


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic algorithms ask for it
    with state_put_back():
        # By default convolutions compute in TF32, so that what changes their order of summation shows much more.
        torch.backends.cudnn.allow_tf32 = False
        yield
    torch._dynamo.reset()


@functools.cache
def spread(mode):
    """What two runs of the same steps differ by, relative to their largest number: atomic additions have no order."""
    first, second = run(mode, device="cuda"), run(mode, device="cuda")
    return ((first - second).abs().max() / first.abs().max()).item()


@pytest.mark.parametrize("mode", list(Mode))
def test_the_same_steps_give_about_the_same_numbers(mode):
    assert spread(mode) < 1e-5


@pytest.mark.parametrize(("recipe", "value", "mode"), cases("cuda"))
def test_a_value_keeps_its_promise(recipe, value, mode):
    if recipe.package and value != recipe.default:
        pytest.importorskip(recipe.package)
    if reason := refusal(recipe, value, components(mode, adam=recipe.id in OF_ADAM, device="cuda")):
        pytest.skip(reason)
    assert kept(recipe, value, mode, device="cuda", spread=spread(mode))
