"""The garbage collector: as the user's program has it in a trial, and frozen or scheduled where the setting says so."""

import gc
import json
from types import ModuleType

import pytest
import torch
from facts import cpu_facts, gpu_facts, profile_facts
from process_state import state_put_back
from proposals import CATALOG, proposed, reason
from recipe_workload import components, run_code
from torch import nn

from advisor.export.python_file import python_source
from advisor.records import Mode, Numerics, Outcome, TargetSpec, TrialSpec
from advisor.runner.trials import Runner
from advisor.step.apply import apply_settings
from advisor.step.collector import STEPS_BEFORE_FREEZING, STEPS_BETWEEN_COLLECTIONS, Collector
from advisor.step.step import make_step
from advisor.step.tuning import Tuning

WAYS = ["default", "freeze", "scheduled"]
BATCH = torch.randn(4, 3, 8, 8), torch.arange(4) % 2


@pytest.fixture(autouse=True)
def _collector_as_it_was():
    with state_put_back():
        yield


@pytest.fixture
def collections():
    """The generations that have been collected."""
    seen = []

    def watch(phase, info):
        if phase == "start":
            seen.append(info["generation"])

    gc.callbacks.append(watch)
    yield seen
    gc.callbacks.remove(watch)


def state(witness):
    """Whether collections are automatic, and whether an object has been taken out of them.

    What the tests have imported is frozen already, so that the number of frozen objects tells nothing.
    """
    return gc.isenabled(), all(one is not witness for one in gc.get_objects())


EXPECTED = {"default": (True, False), "freeze": (True, True), "scheduled": (False, True)}


def assert_collects(step, way):
    """Nothing before the tenth step, and from then on what the way says."""
    witness = [way]
    for _ in range(STEPS_BEFORE_FREEZING - 1):
        step()
    assert state(witness) == (True, False)
    step()
    assert state(witness) == EXPECTED[way]


# --- when it collects -----------------------------------------------------------------------------------------


def test_a_schedule_collects_young_objects_at_every_fiftieth_step(collections):
    after_step = Collector("scheduled")
    for _ in range(STEPS_BEFORE_FREEZING):
        after_step()
    collections.clear()
    for _ in range(2 * STEPS_BETWEEN_COLLECTIONS):
        after_step()
    assert collections == [1, 1]


def test_freezing_collects_once(collections):
    gc.disable()  # so that only what is asked for is seen
    after_step = Collector("freeze")
    for _ in range(3 * STEPS_BETWEEN_COLLECTIONS):
        after_step()
    assert collections == [2]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", list(Mode))
def test_the_step_of_a_trial_collects(mode, way):
    workload = components(mode)
    apply_settings(CATALOG, workload, {"host.gc": way})
    step = make_step(workload, nn.CrossEntropyLoss())
    assert_collects(lambda: step.run(BATCH), way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", list(Mode))
def test_a_loaded_tuning_collects(mode, way):
    workload, tuning = components(mode), Tuning({"host.gc": way})
    if mode is Mode.INFER:
        infer = tuning.infer(workload.model)
        assert_collects(lambda: infer(BATCH[0]), way)
        return
    model, optimizer = tuning.prepare(workload.model, workload.optimizer)
    train = tuning.train_step(model, optimizer, nn.CrossEntropyLoss())
    assert_collects(lambda: train(BATCH), way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("settings", [{}, {"loop.loss_item": "every_step", "step.cuda_graph": True}], ids=["", "more"])
@pytest.mark.parametrize("mode", list(Mode))
def test_the_exported_file_collects(mode, settings, way):
    module, workload = ModuleType("tuned"), components(mode)
    exec(compile(python_source(CATALOG, {"host.gc": way, **settings}, mode), "tuned.py", "exec"), vars(module))
    model, optimizer, _ = module.prepare(workload.model, workload.optimizer)
    if mode is Mode.INFER:
        infer = module.infer_step(model)
        assert_collects(lambda: infer(BATCH[0]), way)
        assert infer(BATCH[0]).shape == (4, 2)
        return
    train = module.train_step(model, optimizer, nn.CrossEntropyLoss())
    assert_collects(lambda: train(BATCH), way)
    assert torch.isfinite(train(BATCH))


@pytest.mark.parametrize("way", ["freeze", "scheduled"])
def test_the_code_shown_collects(way):
    names = run_code(CATALOG["host_gc"], way, components())
    assert_collects(names["after_step"], way)


# --- trials ---------------------------------------------------------------------------------------------------

TARGET = """
import gc
import json
import torch


class Net(torch.nn.Linear):
    calls = 0

    def forward(self, x):
        Net.calls += 1
        if Net.calls % 20 == 0:
            print("collector", json.dumps([gc.isenabled(), gc.get_freeze_count() > 0]), flush=True)
        return super().forward(x)


def build():
    torch.manual_seed(0)
    return Net(4, 4), (torch.randn(2, 4), torch.randn(2, 4)), torch.nn.MSELoss()
"""


@pytest.mark.process
def test_a_trial_collects_as_its_setting_says_and_the_baseline_as_a_users_program(tmp_path):
    (tmp_path / "target.py").write_text(TARGET)
    Runner.prepare()
    runner = Runner()

    def trial(way):
        log = tmp_path / f"{way}-{len(list(tmp_path.glob('*.log')))}.log"
        spec = TrialSpec(
            trial_id="t",
            target=TargetSpec("target.py", str(tmp_path), device="cpu"),
            settings={} if way == "default" else {"host.gc": way},
            measure_s=0.02,
            warmup_limit_s=0.05,
            timeout_s=60.0,
            log_path=str(log),
        )
        result = runner.run(spec, lambda message: None)
        assert result.outcome is Outcome.MEASURED, result.reason
        lines = [line.removeprefix("collector ") for line in log.read_text().splitlines() if "collector " in line]
        return result.losses, {tuple(json.loads(line)) for line in lines}

    losses, states = trial("default")
    assert states == {EXPECTED["default"]}
    assert trial("scheduled") == (losses, {EXPECTED["scheduled"]})
    assert trial("default") == (losses, {EXPECTED["default"]}), "a trial leaves nothing to the next one"


# --- when it is proposed --------------------------------------------------------------------------------------


def test_it_is_proposed_where_the_host_can_be_the_limit():
    assert proposed("host_gc", cpu_facts()) == ["freeze", "scheduled"]
    assert proposed("host_gc", gpu_facts(profile=profile_facts(device_busy_share=0.5))) == ["freeze", "scheduled"]
    busy = gpu_facts(profile=profile_facts(device_busy_share=0.99))
    assert "the GPU computes for 99 % of the step" in reason("host_gc", busy)


def test_it_promises_the_same_numbers():
    assert CATALOG["host_gc"].numerics is Numerics.EXACT
    assert not CATALOG["host_gc"].usual
