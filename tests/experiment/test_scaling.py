"""The search over several GPUs, alone and in whole sessions; a function of the settings gives the speeds."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from facts import cpu_facts, gpu_facts, h200, loader_facts
from fake_trials import FakeRun, FakeTrials
from made_up import failed
from planted import pauses_removed, plant_removers
from proposals import CATALOG, proposed, reason
from torch import distributed, nn
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from advisor.errors import UsageError
from advisor.experiment import events
from advisor.experiment.consent import Consent
from advisor.experiment.known import Kind
from advisor.experiment.plan import Plan
from advisor.experiment.request import Request
from advisor.experiment.scaling.gpus import gpus_in_use, why_not_several
from advisor.experiment.scaling.rank_search import (
    BATCH,
    NOT_TRIED,
    PRIOR,
    RankSearch,
    Scaling,
    carried_over,
    strategy_of,
)
from advisor.judging.judge import Judge
from advisor.ranks.launcher import of_torchrun
from advisor.ranks.trial import straggler_share
from advisor.recipe.plan import StepPlan
from advisor.recipe.settings import Settings
from advisor.records import Block, Mode, Numerics, Outcome, RanksFound, TargetSpec, TrialResult
from advisor.records.trials import UNUSED_PARAMETERS
from advisor.report.document import Table
from advisor.report.several_gpus import row_words, several_gpus_section
from advisor.step.spread import ShareOfBatches, spread_loader
from advisor.workloads.loop import Loop

GPUS = 2
DDP = Settings({"parallel.strategy": "ddp"})
LARGE = {"parameter_bytes": 30 * 2**30, "device_memory_bytes": 140 * 2**30}


def machine(gpus, **changes):
    """A machine with as many H200s."""
    found = tuple(h200(index=number, uuid=f"GPU-{number}", **changes) for number in range(gpus))
    return replace(gpu_facts().hardware, gpus=found)


def wanting(gpus, device="auto"):
    return Request(TargetSpec("t.py:build", ".", device=device), gpus=gpus)


def facts(**changes):
    return replace(gpu_facts(**changes), gpus=GPUS)


def result(rate, *, losses=(2.0, 1.9)):
    blocks = tuple(Block(10, 640, 640 / (rate * (1 + 0.001 * place))) for place in range(6))
    found = RanksFound(64, 32, (2**30,) * GPUS, alone_ms=(0.8,) * GPUS, exposed_ms=32_000 / rate)
    return TrialResult(Outcome.MEASURED, blocks=blocks, losses=losses, ranks=found)


class MadeUpSearch(RankSearch):
    """Runs trials at rates by their settings, within a number of trials."""

    def __init__(self, known, rate_of, trials=41):
        bench = SimpleNamespace(
            budget=SimpleNamespace(allows=lambda expected_s: True),
            expected_s=lambda settings: 1.0,
            emit=lambda event: None,
            post_progress=lambda wanted_s: None,
        )
        super().__init__(bench, known, known.carried, lambda consent: consent)
        self.rate_of = rate_of
        self.left = trials
        self.asked = []

    def affords(self, move, known):
        return self.left >= (4 if move.kind is Kind.TURNS else 1)

    def measure(self, move, known):
        if move.settings:
            self.asked.append(f"{move.name}, in turn" if move.kind is Kind.TURNS else move.name)
        return super().measure(move, known)

    def _run(self, settings, pair=0):
        self.left -= 1
        rate = self.rate_of(settings)
        if isinstance(rate, str):
            return TrialResult(Outcome.FAILED, rate)
        return rate if isinstance(rate, TrialResult) else result(rate)


def searched(rate_of, *, allow=Numerics.CLOSE, carried=None, **workload):
    proposed_here = CATALOG.propose(facts(**workload)).candidates
    candidates = tuple(c for c in proposed_here if c.key.startswith("parallel.") or CATALOG[c.recipe].over_ranks)
    consent = Consent(CATALOG, Mode.TRAIN, allow)
    known = Scaling(
        plan=Plan(CATALOG, wanting(GPUS), facts(**workload), consent, candidates),
        judge=Judge(CATALOG, Mode.TRAIN, NOT_TRIED, prior=PRIOR),
        carried=Settings(carried or {}),
    )
    trials = MadeUpSearch(known, rate_of)
    return trials.run(), trials


def rate_of(settings):
    """DDP scales well, a bucket view adds a little, large buckets cost, everything else is slow."""
    rate = {"single": 1000, "ddp": 1700}.get(strategy_of(settings), 900)
    if settings.get("parallel.gradient_as_bucket_view"):
        rate *= 1.08
    if "parallel.bucket_cap_mb" in settings:
        rate *= 0.9
    return rate * (1.1 if BATCH in settings else 1)


def test_the_strategy_that_may_gain_comes_first_then_its_options_then_the_turns():
    known, trials = searched(rate_of, **LARGE)
    weak = next(name for name in trials.asked if "whole batch on each GPU" in name)
    order = ["ddp", weak, "ddp, gradient_as_bucket_view: true, in turn"]
    assert trials.asked[0] == "ddp"
    assert [name for name in trials.asked if name in order] == order
    assert known.stack == {**DDP, "parallel.gradient_as_bucket_view": True}
    assert known.confirmed
    assert [name for name in trials.asked if "fully_shard" in name] == ["fully_shard"]
    row = known.record().row(known.record().best)
    assert row.speedup == pytest.approx(1.836, rel=0.01)
    assert row.ci_low < row.speedup < row.ci_high
    assert row.efficiency == pytest.approx(0.918, rel=0.01)


def test_weak_scaling_is_told_apart_and_never_the_stack():
    known, _ = searched(rate_of)
    weak = [row for row in known.record().rows if row.weak]
    assert len(weak) == 1
    assert not any(row.weak for row in known.record().rows if row.name == known.record().best)
    told = row_words(weak[0])
    assert "whole batch on each GPU: " in told
    assert "the samples/s of one GPU at 2 times its global batch, efficiency" in told
    assert all("global batch" not in row_words(row) for row in known.record().rows if not row.weak)
    (table,) = [block for block in several_gpus_section(known.record()).blocks if isinstance(block, Table)]
    remarks = {cells[0]: cells[-1] for cells in table.rows}
    assert remarks[weak[0].name] == "another training, at 2 times its global batch"


def test_where_one_gpu_is_as_fast_there_is_no_stack_and_still_a_price_for_each():
    known, trials = searched(lambda settings: 1000 if not settings else 700)
    assert known.stack == {}
    assert "ddp, gradient_as_bucket_view: true" in trials.asked
    assert not any("in turn" in name for name in trials.asked)
    assert "nothing on 2 GPUs was faster" in several_gpus_section(known.record()).blocks[0]


def test_without_one_gpu_there_is_nothing_to_compare_with():
    known, trials = searched(lambda settings: "rank 0: the model is wrapped in DistributedDataParallel already.")
    assert trials.asked == []
    assert "were not measured: rank 0: the model is wrapped" in several_gpus_section(known.record()).blocks[0]


def test_a_strategy_that_fails_under_compiled_code_runs_again_without():
    known, trials = searched(
        lambda settings: "rank 1: no" if settings == DDP else rate_of(settings), carried={"compile.mode": "default"}
    )
    assert "ddp, compile.mode: none" in trials.asked
    assert known.stack["compile.mode"] == "none"


def test_a_graph_with_the_exchange_of_gradients_in_it_is_tried_first_and_left_out_where_it_fails():
    carried = {"compile.mode": "default", "step.cuda_graph": True}
    known, trials = searched(rate_of, carried=carried, **LARGE)
    assert trials.asked[0] == "ddp"
    assert "ddp, compile.mode: none" not in trials.asked
    assert "step.cuda_graph: false" in next(name for name in trials.asked if "fully_shard" in name)

    def refuses(settings):
        graph = settings.get("step.cuda_graph", True) and strategy_of(settings) == "ddp"
        return "rank 0: operation not permitted when stream is capturing" if graph else rate_of(settings)

    known, trials = searched(refuses, carried=carried)
    assert trials.asked[1] == "ddp, step.cuda_graph: false"
    assert known.stack["step.cuda_graph"] is False
    assert known.stack["parallel.strategy"] == "ddp"


def test_unused_parameters_are_looked_for_where_ddp_misses_their_gradients():
    def unused(settings):
        looks = strategy_of(settings) != "ddp" or settings.get("parallel.find_unused_parameters")
        return rate_of(settings) if looks else f"rank 0: {UNUSED_PARAMETERS}"

    known, _ = searched(unused)
    assert known.stack["parallel.find_unused_parameters"] is True


def test_what_changes_results_is_priced_and_not_taken():
    def alike(settings):
        return 2500 if settings.get("parallel.length_bucketing") else rate_of(settings)

    texts = {"varying_shapes": True, "loader": loader_facts()}
    known, _ = searched(alike, **texts)
    assert "consent" in next(row for row in known.record().rows if "length_bucketing" in row.name).reason
    assert "parallel.length_bucketing" not in known.stack
    allowed, _ = searched(alike, allow=Numerics.CHANGED, **texts)
    assert allowed.stack["parallel.length_bucketing"] is True


def test_other_losses_than_one_gpus_are_not_the_same_training():
    def wrong_losses(settings):
        return result(1900, losses=(2.0, 1.2)) if strategy_of(settings) == "ddp" else rate_of(settings)

    known, _ = searched(wrong_losses)
    assert known.stack.get("parallel.strategy") != "ddp"
    assert "first losses differ" in known.record().row("ddp").reason


def test_sharding_is_tried_where_the_state_is_large():
    assert proposed("parallel_strategy", facts()) == ["ddp"]
    assert proposed("parallel_strategy", facts(**LARGE)) == ["ddp", "fully_shard"]
    assert "--gpus" in reason("parallel_strategy", gpu_facts())


def test_what_stands_between_model_and_loss_and_the_compiler_s_graphs_are_not_carried_over():
    stack = {"step.cuda_graph": True, "precision.autocast": "bfloat16", "compile.scope": "with_loss"}
    carried, left_out = carried_over(CATALOG, stack)
    assert carried == {"step.cuda_graph": True, "precision.autocast": "bfloat16", "compile.mode": "default"}
    assert set(left_out) == {"compile.scope"}
    carried, left_out = carried_over(CATALOG, {"compile.mode": "reduce-overhead"})
    assert carried == {"compile.mode": "default"}
    assert "graphs" in left_out["compile.mode"]


MIXED = machine(4)
MIXED = replace(MIXED, gpus=(replace(MIXED.gpus[0], mig_enabled=True), *MIXED.gpus[1:]))


@pytest.mark.parametrize(
    ("wanted", "shown", "hardware", "count"),
    [
        (wanting(1), None, machine(1), 1),
        (wanting(2, "cpu"), None, machine(1), 2),
        (wanting(0), "0,3,5", machine(0), 3),  # NVML cannot be used
        (wanting(0), None, MIXED, 3),
        (wanting(2), "MIG-1,MIG-2", machine(4), "0 are visible"),
        *((wanting(0), shown, machine(6), 3) for shown in ("0,3,5", "5,GPU-2,1", "0,1,4,9,2")),
        (wanting(0), "0,-1,1", machine(6), 1),
        *((wanting(0), shown, machine(6), "0 are visible") for shown in ("-1", "", "GPU-")),
    ],
)
def test_gpus_are_counted_as_cuda_shows_them_before_anything_is_measured(monkeypatch, wanted, shown, hardware, count):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    if isinstance(count, int):
        assert gpus_in_use(wanted, hardware) == count
    else:
        with pytest.raises(UsageError, match=count):
            gpus_in_use(wanted, hardware)


def test_several_gpus_are_for_training():
    assert "for training" in why_not_several(facts(mode=Mode.INFER))
    assert "your own" in why_not_several(facts(own_step=True))
    assert "iterable" in why_not_several(facts(loader=loader_facts(iterable_dataset=True)))
    assert why_not_several(facts()) == ""


def test_ranks_share_each_batch_and_get_parts_of_one_size():
    batches = [[0, 1, 2, 3], [4, 5, 6]]
    assert [list(ShareOfBatches(batches, rank, 2)) for rank in range(2)] == [[[0, 1], [4, 5]], [[2, 3], [6, 4]]]


def test_ranks_draw_alike_in_each_epoch_and_one_rank_of_one_draws_the_same():
    loader = DataLoader(TensorDataset(torch.arange(12)), batch_size=4, shuffle=True)
    plan = StepPlan(mode="train", device="cpu")
    ranks = [spread_loader(loader, plan, rank, 2) for rank in range(2)]
    whole = spread_loader(loader, plan, 0, 1)

    def drawn(share, epoch):
        torch.manual_seed(epoch)
        return [batch[0] for batch in share]

    epochs = []
    for epoch in range(2):
        parts = zip(*(drawn(share, epoch) for share in ranks), strict=True)
        epochs.append([torch.cat(pair).tolist() for pair in parts])
        assert epochs[-1] == [batch.tolist() for batch in drawn(whole, epoch)]
        assert epochs[-1] == [batch.tolist() for batch in drawn(loader, epoch)]
    assert epochs[0] != epochs[1]
    assert loader.sampler.generator is None


def test_like_lengths_leave_no_rank_with_longer_samples():
    lengths = [1, 90, 2, 91, 3, 92, 4, 93]
    batches = [[0, 1, 2, 3], [4, 5, 6, 7]]
    shares = []
    for rank in range(2):
        torch.manual_seed(0)  # without a process group nobody sends the others a seed
        shares.append(list(ShareOfBatches(batches, rank, 2, lengths)))
    one, other = shares
    assert sorted(itertools.chain(*one, *other)) == list(range(8))
    for mine, theirs in zip(one, other, strict=True):
        assert abs(sum(lengths[i] for i in mine) - sum(lengths[i] for i in theirs)) <= 2


@pytest.mark.parametrize(
    ("everywhere", "share"),
    [
        ([[10.0] * 20, [40.0] * 20], 0.75),
        ([[20.0] * 20, [20.0] * 20], 0.0),
        ([[20.0] * 19 + [900.0], [25.0] * 20], 0.2),
    ],
    ids=["one is slow", "alike", "a disturbed step"],
)
def test_the_straggler_s_share_is_what_the_fastest_rank_waits_for_the_slowest(everywhere, share):
    assert straggler_share(everywhere) == pytest.approx(share, rel=0.02)


@pytest.mark.parametrize(
    ("code", "words"), [(-9, "SIGKILL"), (-6, "waited for another too long"), (1, "no such sample")]
)
def test_the_end_of_torchrun_is_that_of_the_rank_that_ended_first(code, words):
    ends = {0: ProcessFailure(0, 41, 1, "nothing"), 1: ProcessFailure(1, 42, code, "nothing")}
    ends[1].timestamp = 1
    ends[1].message = "Traceback\nno such sample" if code > 0 else ends[1].message
    told = of_torchrun(ChildFailedError("rank", ends)).reason
    assert told.startswith("rank 1: ")
    assert words in told


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
    result = several_gpus_section(run.state.scaling).blocks[0]
    assert result == f"Nothing on 2 processes could be measured. ddp: {reason}."
    late = session(tmp_path, gpus=2)
    late.when(lambda event: isinstance(event, events.ScalingMeasured), late.session.finish)
    result = several_gpus_section(late.run().state.scaling).blocks[0]
    assert result == "Nothing was measured on 2 processes before the session ended: raise --budget."


def test_what_no_time_was_left_for_is_named(tmp_path):
    def slow_over_ranks(settings):
        views = 1.1 if settings.get("parallel.gradient_as_bucket_view") else 1.0
        return speed(settings) * views * (0.5 if "parallel.strategy" in settings else 1.0)

    run = session(tmp_path, slow_over_ranks, ("gradient_as_bucket_view",), gpus=2, budget_s=10.0).run()
    assert run.state.scaling.passed_over["ddp, gradient_as_bucket_view: true"] == "no time was left: raise --budget"


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
    return Loop(model, data, None, None, Mode.TRAIN, batch_size=2)


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
