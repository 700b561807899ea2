"""The loops on the CPU, plain and tuned: under stacks of what applies, a few under every setting, some compiled."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch

from advisor.recipe.catalog import load_catalog
from loops.cases import LEFT_OUT, VALUES, cases_of
from loops.compare import Tolerance, differences
from loops.known import BY_DESIGN, KNOWN, explanation
from loops.records import Record, run_plain
from loops.register import all_loops
from loops.table import rows

LOOPS = all_loops()
CPU = torch.device("cpu")
# Every loop runs under what keeps float32: the fastest forms of everything, beside all that changes nothing.
QUICK = "float32 stack"
# These run under further settings, by what their names begin with: one loop under all that need no compiler, others
# under what it has no use for.
FURTHER = {
    "plain": ("exact", "cpu.", "host.", "model.", "optimizer.implementation", "precision.", "step."),
    "dropout": ("data.",),
    "nanogpt_step": ("attention.", "memory.", "precision.autocast"),
    "resume_sgd": ("precision.autocast: float16",),
    "one_cycle_adam": ("optimizer.",),
    "one_by_one": ("",),
}
# These are traced and guarded as when they are compiled, without generating code; the first one is compiled for real.
COMPILED = {
    "one_batch": "compile.mode: default",
    "nanogpt_step": "compile.scope: regional",
    "resume_adamw": "compiled stack",
    "ema_by_hand": "compiled stack",
    "group_added_later": "compiled with loss",
    "unfrozen_later": "compiled stack",
    "changing_shapes": "compile.dynamic: True",
    "hugging_face_like": "compiled with loss",
    "gan": "compile.mode: default",
    "infer_made_once": "compile.mode: default",
    "collected": "compile.mode: default",
    "functional_loss": "compile.mode: default",
    "sharpness_aware": "compile.mode: default",
    "own_functions": "compiled with loss",
    "actor_critic": "compiled stack",
}
_NONE_ALLOWED = Tolerance(0.0, 0.0, 0.0, 0.0)


def unexplained(name: str, wanted: Collection[str]) -> list[str]:
    """What a loop did otherwise than its plain form under some cases, and why nobody expected it."""
    found = []
    for row in rows([LOOPS[name]], CPU, lambda _, case: case.name in wanted):
        if row.outcome == "skipped":
            pytest.skip(row.details[0])
        texts = row.details if row.outcome != "same" else ()
        new = [text for text in texts if explanation(name, row.case, text) is None]
        found += [f"{row.case} ({row.direction}) {row.outcome}: {text}" for text in new]
    return found


@pytest.mark.process
@pytest.mark.parametrize("name", LOOPS)
def test_a_tuned_loop_does_what_the_plain_one_does(name):
    cases = cases_of(LOOPS[name], "cpu")
    further = [
        case.name for case in cases if case.name.startswith(FURTHER.get(name, "no further")) and not case.compiles
    ]
    quick = QUICK if QUICK in [case.name for case in cases] else "nothing"
    assert not unexplained(name, {quick, *further})


@pytest.mark.compile
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_loop_does_what_the_plain_one_does(name, request):
    if name != next(iter(COMPILED)):
        request.getfixturevalue("eager_backend")
    assert not unexplained(name, {COMPILED[name]})


@pytest.mark.process
@pytest.mark.parametrize("entry", [*KNOWN, *BY_DESIGN], ids=lambda entry: entry.reason)
def test_what_is_expected_is_still_so(entry):
    if entry.device == "cuda" and not torch.cuda.is_available():
        pytest.skip("a GPU shows it")
    name, wanted = entry.example
    device = torch.device(entry.device)
    seen = [text for row in rows([LOOPS[name]], device, lambda _, case: case.name == wanted) for text in row.details]
    assert any(entry.matches(name, wanted, text) for text in seen), "mended: remove it from known.py"


def test_what_is_said_of_settings_is_of_settings_that_there_are():
    assert not VALUES.keys() & LEFT_OUT.keys()
    assert {*VALUES, *LEFT_OUT} <= {recipe.key for recipe in load_catalog()}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_loop_has_cases_on_both_devices(device):
    for loop in LOOPS.values():
        names = [case.name for case in cases_of(loop, device)]
        assert names[0] == "nothing"
        assert len(names) == len(set(names))


# --- the comparison itself ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_cycle():
    return run_plain(LOOPS["one_cycle_sgd"], CPU)


def test_a_loop_is_equal_to_itself(one_cycle):
    assert differences(one_cycle, run_plain(LOOPS["one_cycle_sgd"], CPU), _NONE_ALLOWED) == []


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (lambda model, optimizer: model["0.weight"].mul_(1.01), "0.weight"),
        (lambda model, optimizer: model.pop("0.bias"), "lost 0.bias"),
        (lambda model, optimizer: optimizer["param_groups"][0].update(lr=0.5), "lr of group 0"),
        (lambda model, optimizer: optimizer["param_groups"][0].update(lr=torch.tensor(0.1)), "lr of group 0"),
        (lambda model, optimizer: optimizer["state"].pop(2), "5 parameters instead of 6"),
        (lambda model, optimizer: optimizer["state"][0]["momentum_buffer"].zero_(), "momentum_buffer"),
    ],
)
def test_what_differs_in_a_state_is_said(one_cycle, other, what):
    tuned = run_plain(LOOPS["one_cycle_sgd"], CPU)
    other(tuned.states["model"], tuned.states["optimizer"])
    loose = Tolerance(1e-4, 1e-3, 1e-3, 2e-2)
    assert any(what in str(difference) for difference in differences(one_cycle, tuned, loose))


def test_a_frozen_learning_rate_is_seen(one_cycle):
    notes = {**one_cycle.notes, "rates": one_cycle.notes["rates"][:1] * 50}
    tuned = Record(notes, one_cycle.states, one_cycle.starts)
    assert any("rates" in str(difference) for difference in differences(one_cycle, tuned, _NONE_ALLOWED))


@pytest.mark.parametrize(
    ("best", "said"), [(1.3 + 1e-5, ""), (1.4, "losses of scheduler.best"), (True, "scheduler: best is True")]
)
def test_the_best_loss_of_a_scheduler_is_a_loss(best, said):
    plain, tuned = (Record(states={"scheduler": {"best": value, "factor": 0.3}}) for value in (1.3, best))
    found = " ".join(map(str, differences(plain, tuned, Tolerance(1e-4, 1e-3, 1e-3, 2e-2))))
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_another_warning_is_a_difference(one_cycle):
    tuned = Record(one_cycle.notes, one_cycle.states, one_cycle.starts, frozenset({"UserWarning: order"}))
    assert [str(difference) for difference in differences(one_cycle, tuned, _NONE_ALLOWED)] == [
        "warning: UserWarning: order"
    ]
