"""Trials on several GPUs at a time: which GPUs and which moves, what is told, and that verdicts stay the same."""

import math
from dataclasses import replace

import pytest
from facts import gpu_facts, h200, host, loader_facts
from fake_trials import FakeRun, FakeTrials
from made_up import CATALOG

from advisor.experiment import events, session
from advisor.experiment.measuring.other_gpus import UnusableError, cores_of_a_trial, other_gpus
from advisor.export.json_report import report
from advisor.records import GpuProcess, Hardware, TargetSpec

RECIPES = ("autocast", "tf32", "zero_grad", "fused_optimizer", "channels_last", "cudnn_benchmark", "host_sync")
FACTORS = {"bfloat16": 1.6, "float16": 1.5, "high": 1.2, "fused": 1.15, "for-loop": 0.9, "channels_last": 0.8}
NONE = "no other GPU is of the same model, whole and unused"
TARGET = TargetSpec("target.py", ".", device="auto")


def speed(settings):
    """A step that is faster by the product of what its settings bring, by their values."""
    return math.prod((FACTORS.get(str(value), 1.0) for value in settings.values()), start=1.0)


def gpus(count, **changes):
    return tuple(h200(index=place, uuid=f"GPU-{place}", **changes) for place in range(count))


def machine(count=4, cores=64, **changes):
    return Hardware(host(usable_cores=cores), gpus(count, **changes))


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a session on fake trials of a machine with GPUs; the first argument is how many."""
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def run_on(count, *, disturbance=None, hardware=None, **options):
        monkeypatch.setattr(session, "inspect_hardware", lambda: hardware or machine(count))
        trials = FakeTrials(speed, facts=gpu_facts())
        trials.disturbance = disturbance or {}
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return FakeRun(
            folder,
            speed,
            trials=trials,
            only=RECIPES,
            budget_s=120.0,
            device="auto",
            **{"side_by_side": True} | options,
        ).run()

    return run_on


def verdicts(run):
    return {name: record.verdict for name, record in run.state.trials.items()}


def said(run):
    return [event.text for event in run.posted(events.Said)]


def test_other_gpus_end_a_session_earlier_with_the_same_verdicts(run):
    alone, beside = run(4, side_by_side=False), run(4)
    assert verdicts(beside) == verdicts(alone)
    assert beside.state.stack_settings == alone.state.stack_settings
    assert beside.trials.now_s < 0.8 * alone.trials.now_s
    assert alone.trials.devices == []
    assert set(beside.trials.devices) == {"auto", "cuda:1", "cuda:2", "cuda:3"}
    assert "trials run side by side on 4 GPUs, with the same results" in said(beside)


def test_the_record_says_which_gpu_a_trial_ran_on(run):
    full = report((found := run(4)).state, found.request, "1.0")
    devices = {trial["device"] for trial in full["trials"] if trial.get("step_ms")}
    assert {"", "cuda:1"} <= devices
    assert found.state.stack.result.device == ""


def test_the_turns_with_the_baseline_run_while_nothing_else_does(run):
    under_way, found = set(), run(4)
    for event in found.told:
        if isinstance(event, events.TrialStarted):
            under_way.add(event.name)
            alone = event.name.startswith(("stack, confirmed", "baseline, beside", "baseline, instrumented"))
            assert not alone or under_way == {event.name}, under_way
        if isinstance(event, events.TrialEnded):
            under_way.discard(event.name)


@pytest.mark.parametrize(
    ("disturbance", "devices", "told"),
    [
        ({"auto": 1.2}, {"auto", "cuda:1", "cuda:2", "cuda:3"}, "the baseline's step differs by 20.0 %"),
        (dict.fromkeys(("cuda:1", "cuda:2", "cuda:3"), 1.3), {"auto", "cuda:1", "cuda:2", "cuda:3"}, "by 30.0 %"),
    ],
)
def test_trials_that_disturb_each_other_run_one_after_the_other(run, disturbance, devices, told):
    found = run(4, disturbance=disturbance)
    assert set(found.trials.devices) == devices
    assert len(found.trials.devices) == 4  # of the check alone
    assert any("on one GPU only" in text and told in text for text in said(found))


def test_a_gpu_that_differs_is_left_out(run):
    found = run(4, disturbance={"cuda:2": 1.2})
    assert found.trials.devices.count("cuda:2") == 1
    assert found.trials.devices.count("cuda:1") > 1
    assert any("side by side on 3 GPUs" in text for text in said(found))


def test_a_session_that_is_cancelled_ends_the_trials_of_all_gpus(run, monkeypatch, tmp_path):
    monkeypatch.setattr(session, "inspect_hardware", lambda: machine(4))
    trials = FakeTrials(speed, facts=gpu_facts())
    (folder := tmp_path / "cancelled").mkdir()
    made = FakeRun(folder, speed, trials=trials, only=RECIPES, budget_s=120.0, device="auto", side_by_side=True)
    made.run_until(lambda event: isinstance(event, events.TrialStarted) and bool(trials.devices))
    assert made.state.finished.cancelled


@pytest.mark.parametrize(
    ("hardware", "devices"),
    [(machine(1), ()), (machine(2), ("cuda:1",)), (machine(4, cores=6), ("cuda:1", "cuda:2"))],
)
def test_other_gpus_are_used_where_there_are_cores_for_a_trial_on_each(hardware, devices):
    assert other_gpus(gpu_facts(hardware=hardware), TARGET, {}) == devices


@pytest.mark.parametrize(
    ("hardware", "problem"),
    [
        (machine(2, cores=3), "two trials at a time need 4 cores, and 3 are usable"),
        (machine(2, mig_enabled=True), NONE),
        (machine(2, processes=(GpuProcess(1, "other", None),)), NONE),
        (
            Hardware(host(), (h200(), h200(index=1, uuid="GPU-1", name="NVIDIA L4"))),
            NONE,
        ),
    ],
)
def test_other_gpus_that_differ_or_are_in_use_are_not_used(hardware, problem):
    with pytest.raises(UnusableError, match=problem):
        other_gpus(gpu_facts(hardware=hardware), TARGET, {})


def test_a_loaders_workers_count_as_cores():
    facts = gpu_facts(hardware=machine(2, cores=16), loader=loader_facts(num_workers=8))
    with pytest.raises(UnusableError, match="two trials at a time need 20 cores, and 16 are usable"):
        other_gpus(facts, TARGET, {})
    assert cores_of_a_trial(facts, {"data.num_workers": 4}, CATALOG) == 6
    assert cores_of_a_trial(facts, {"compile.mode": "default"}, CATALOG) == 26


def test_only_visible_gpus_are_used_by_the_numbers_that_cuda_gives_them():
    facts = gpu_facts(hardware=machine(4))
    assert other_gpus(facts, TARGET, {"CUDA_VISIBLE_DEVICES": "3"}) == ()
    assert other_gpus(facts, TARGET, {"CUDA_VISIBLE_DEVICES": "2,GPU-3"}) == ("cuda:1",)
    assert other_gpus(facts, replace(TARGET, device="cuda:1"), {"CUDA_VISIBLE_DEVICES": "2,3"}) == ("cuda:0",)
    assert other_gpus(facts, TARGET, {"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}) == ()
