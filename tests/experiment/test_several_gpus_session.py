"""Sessions that go on to several GPUs, on fake trials: what is measured there, and the time for it."""

from dataclasses import replace

import pytest
import torch
from facts import cpu_facts
from fake_trials import FakeRun, FakeTrials
from made_up import failed
from planted import pauses_removed, plant_removers
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from advisor.experiment import events
from advisor.records import Mode
from advisor.report.several_gpus import several_gpus_section
from advisor.workloads.loop import Loop

BUDGET_S = 120.0


def speed(settings):
    """Two ranks are 1.8 times as fast as one."""
    return pauses_removed(settings) * (1.8 if settings.get("parallel.strategy") == "ddp" else 1.0)


def session(folder, speed_of=speed, more=(), **options):
    plant_removers(folder / "recipes", usual=True, first="EXACT", second="EXACT")
    only = ("first", "second", "parallel_strategy", *more)
    return FakeRun(folder, speed_of, only=only, **{"budget_s": BUDGET_S, **options})


def best(run):
    return run.state.scaling.row(run.state.scaling.best)


def test_several_gpus_are_measured_after_the_search_on_one_in_half_of_the_time(tmp_path):
    run, began_s = session(tmp_path, gpus=2, budget_s=20.0), []
    run.when(
        lambda event: isinstance(event, events.StageStarted) and event.stage == "several GPUs",
        lambda: began_s.append(run.trials.now_s),
    )
    run.run()
    assert began_s[0] <= 10
    assert run.state.failure is None
    assert [event.stage for event in run.posted(events.StageStarted)][-2:] == ["several GPUs", "done"]
    assert best(run).name == "ddp"
    assert best(run).speedup == pytest.approx(1.8, rel=0.02)
    assert run.state.scaling.carried == {"planted.first": True, "planted.second": True}


def test_what_could_not_be_measured_is_not_called_slower(tmp_path):
    reason = "rank 1: ValueError: no such sample"
    run = session(
        tmp_path, lambda settings: failed(reason) if "parallel.strategy" in settings else speed(settings), gpus=2
    ).run()
    result = next(several_gpus_section(run.state.scaling)).blocks[0].text
    assert result == f"Nothing on 2 processes could be measured. ddp: {reason}."
    late = session(tmp_path, gpus=2)
    late.when(lambda event: isinstance(event, events.ScalingMeasured), late.session.finish)
    result = next(several_gpus_section(late.run().state.scaling)).blocks[0].text
    assert result == "Nothing was measured on 2 processes before the session ended: raise --budget."


def with_views(settings):
    """Gradients as views of the buckets are worth a tenth."""
    return speed(settings) * (1.1 if settings.get("parallel.gradient_as_bucket_view") else 1.0)


def slow_over_ranks(settings):
    return with_views(settings) * (0.5 if "parallel.strategy" in settings else 1.0)


def test_what_no_time_was_left_for_is_named(tmp_path):
    scaling = (
        session(tmp_path, slow_over_ranks, ("gradient_as_bucket_view",), gpus=2, budget_s=10.0).run().state.scaling
    )
    assert scaling.passed_over["ddp, gradient_as_bucket_view: true"] == "no time was left: raise --budget"


WRAPPED = "the model is wrapped in DistributedDataParallel already"


def test_what_is_spread_already_is_told_at_once_and_leaves_its_time_to_one_gpu(tmp_path):
    facts = cpu_facts()
    facts = replace(facts, workload=replace(facts.workload, spread_already=WRAPPED))
    run = session(tmp_path, trials=FakeTrials(speed, facts=facts), gpus=2, budget_s=20.0).run()
    told = [place for place, event in enumerate(run.told) if WRAPPED in getattr(event, "text", "")]
    searched = [place for place, event in enumerate(run.told) if isinstance(event, events.TrialMeasured)]
    assert min(told) < min(searched)
    assert run.trials.now_s > 12, "more than the half of the time that is kept for several GPUs"
    assert run.state.scaling is None


def loop_of(model, data=None):
    return Loop(model, data, None, None, Mode.TRAIN, 2)


def test_what_of_a_loop_is_spread_already(tmp_path):
    samples = TensorDataset(torch.zeros(4, 2))
    sampler = DistributedSampler(samples, num_replicas=2, rank=0)
    plain = nn.Linear(2, 2)
    assert loop_of(plain, DataLoader(samples)).spread_already == ""
    assert "wrapped in DataParallel" in loop_of(nn.DataParallel(plain)).spread_already
    assert "DistributedSampler" in loop_of(plain, DataLoader(samples, sampler=sampler)).spread_already
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert "init_process_group" in loop_of(plain).spread_already
        assert "wrapped in DistributedDataParallel" in loop_of(DistributedDataParallel(plain)).spread_already
    finally:
        distributed.destroy_process_group()
