"""Sessions that go on to several GPUs, on fake trials: GPUs that a person chooses meanwhile, and the time for them."""

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

from advisor.errors import ExitCode
from advisor.experiment import events
from advisor.experiment.past.journal import open_session
from advisor.records import Mode
from advisor.report.several_gpus import several_gpus_section
from advisor.target.loop import Loop
from advisor.trial.ranks.trial import samples_in

BUDGET_S = 120.0


def speed(settings):
    """Two ranks are 1.8 times as fast as one."""
    return pauses_removed(settings) * (1.8 if settings.get("parallel.strategy") == "ddp" else 1.0)


def session(folder, speed_of=speed, more=(), **options):
    plant_removers(folder / "recipes", usual=True, first="EXACT", second="EXACT")
    recipes = (str(folder / "recipes"),)
    only = ("first", "second", "parallel_strategy", *more)
    return FakeRun(folder, speed_of, only=only, recipe_folders=recipes, **{"budget_s": BUDGET_S, **options})


def is_baseline(event):
    return isinstance(event, events.BaselineMeasured)


def best(run):
    return run.state.scaling.row(run.state.scaling.best)


def test_gpus_that_are_chosen_during_the_session_are_measured_after_the_search_on_one(tmp_path):
    run = session(tmp_path)
    run.when(is_baseline, lambda: run.session.use_gpus(2))
    run.run()
    assert run.session.exit_code == ExitCode.OK
    assert [event.stage for event in run.posted(events.StageStarted)][-2:] == ["several GPUs", "done"]
    assert best(run).name == "ddp"
    assert best(run).speedup == pytest.approx(1.8, rel=0.02)
    assert run.state.scaling.carried == {"planted.first": True, "planted.second": True}
    assert run.state.chosen_gpus == 2


def test_half_of_the_time_is_kept_for_them_as_with_the_option(tmp_path):
    def spent_on_one_s(gpus, chosen):
        run = session(tmp_path, gpus=gpus, budget_s=20.0)
        times = []
        run.when(is_baseline, lambda: chosen and run.session.use_gpus(chosen))
        run.when(
            lambda event: isinstance(event, events.StageStarted) and event.stage in ("several GPUs", "done"),
            lambda: times.append(run.trials.now_s),
        )
        run.run()
        return times[0]

    assert spent_on_one_s(1, None) > 12
    assert spent_on_one_s(2, None) <= 10
    assert spent_on_one_s(1, 2) <= 10


def test_a_choice_is_taken_back_with_its_time(tmp_path):
    run = session(tmp_path)
    budget = run.session._bench.budget

    def choose_and_regret():
        before = budget.left_s
        run.session.use_gpus(2)
        assert budget.left_s == pytest.approx(before - BUDGET_S / 2)
        run.session.use_gpus(1)
        assert budget.left_s == pytest.approx(before)

    run.when(is_baseline, choose_and_regret)
    assert run.run().state.scaling is None


def test_a_choice_after_the_search_on_one_changes_nothing(tmp_path):
    run = session(tmp_path)
    run.when(
        lambda event: isinstance(event, events.StageStarted) and event.stage == "done",
        lambda: run.session.use_gpus(2),
    )
    run.run()
    assert run.state.scaling is None
    assert run.state.chosen_gpus is None


def test_a_resumed_session_goes_on_with_the_gpus_that_were_chosen(tmp_path):
    first = session(tmp_path)
    first.when(is_baseline, lambda: first.session.use_gpus(2))
    first.run_until(lambda event: isinstance(event, events.TrialMeasured))
    assert first.state.scaling is None
    past = open_session(first.journal.session_id)
    assert best(session(tmp_path, past=past).run()).name == "ddp"


def test_what_could_not_be_measured_is_not_called_slower(tmp_path):
    reason = "rank 1: ValueError: no such sample"
    run = session(
        tmp_path, lambda settings: failed(reason) if "parallel.strategy" in settings else speed(settings), gpus=2
    ).run()
    result = next(several_gpus_section(run.state.scaling)).blocks[0].text
    assert result == f"Nothing on 2 processes could be measured. ddp: {reason}."
    late = session(tmp_path, gpus=2)
    late.when(
        lambda event: isinstance(event, events.ScalingMeasured),
        late.session.finish,
    )
    result = next(several_gpus_section(late.run().state.scaling)).blocks[0].text
    assert result == "Nothing was measured on 2 processes before the session ended: raise --budget."


def with_graph(settings):
    """A static graph is worth a tenth."""
    return speed(settings) * (1.1 if settings.get("parallel.static_graph") else 1.0)


def slow_over_ranks(settings):
    return with_graph(settings) * (0.5 if "parallel.strategy" in settings else 1.0)


def test_an_option_of_the_strategy_is_measured(tmp_path):
    run = session(tmp_path, with_graph, ("static_graph",), gpus=2).run()
    assert best(run).name == "ddp, static_graph: true"
    assert best(run).speedup == pytest.approx(1.98, rel=0.02)


def test_without_a_stack_no_time_is_kept_for_its_turns(tmp_path):
    scaling = session(tmp_path, slow_over_ranks, ("static_graph",), gpus=2, budget_s=12.0).run().state.scaling
    assert scaling.best == ""
    assert scaling.rows[-1].name == "ddp, static_graph: true"


def test_what_no_time_was_left_for_is_named(tmp_path):
    scaling = session(tmp_path, slow_over_ranks, ("static_graph",), gpus=2, budget_s=10.0).run().state.scaling
    assert scaling.passed_over["ddp, static_graph: true"] == "no time was left: raise --budget"


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


def test_samples_are_counted_where_a_loader_can_tell():
    assert samples_in(DataLoader(TensorDataset(torch.zeros(4, 2)))) == 4
    assert samples_in(torch.zeros(4, 2)) is None
