"""The instrumented pass on a GPU: what bounds a step, ceilings, device time."""

import gzip
import json
from pathlib import Path

import pytest
import torch
from torch import nn
from trial_processes import spec_of

from advisor.recipe.plan import StepPlan
from advisor.records import Bottleneck, Mode, Outcome, Profile, TrialKind
from advisor.runner.trials import Runner
from advisor.step.step import InferStep, TrainStep
from advisor.trial.measurement.clock import StepClock
from advisor.trial.measurement.draws import Feed
from advisor.trial.profile.recording import record_step

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("started_fork_server")]

WORKLOADS = Path(__file__).parent / "workloads"
PLAIN = Profile(step_ms=1000.0, phases={})


@pytest.fixture
def cuda(tmp_path, monkeypatch):
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(tmp_path / "state"))
    return torch.device("cuda", torch.cuda.current_device())


@pytest.mark.parametrize(
    ("workload", "bottleneck", "evidence"),
    [
        ("bound.py:data", Bottleneck.INPUT, "waiting for data"),
        ("bound.py:launches", Bottleneck.LAUNCH, "kernels"),
        ("bound.py:memory", Bottleneck.MEMORY, "the rate of a copy in memory"),
        ("bound.py:products", Bottleneck.COMPUTE, "float32 matrix-product rate"),
        ("bound.py:copies", Bottleneck.COPY, "copying the batch to the GPU takes"),
    ],
)
def test_the_verdict_is_what_the_workload_was_made_for(tmp_path, workload, bottleneck, evidence):
    messages = []
    options = {"kind": TrialKind.PROFILE, "measure_s": 1.0, "warmup_limit_s": 3.0, "timeout_s": 250.0}
    result = Runner().run(spec_of(tmp_path, str(WORKLOADS / workload), device="cuda", **options), messages.append)
    assert result.outcome is Outcome.MEASURED, (result.reason, result.details)
    (profile,) = (message for message in messages if isinstance(message, Profile))
    print(workload, profile.evidence, profile.phases, profile.ceilings)
    assert profile.bottleneck is bottleneck, profile.evidence
    assert evidence in profile.evidence
    assert profile.kernels_per_step >= 1
    with gzip.open(profile.trace_path) as trace:
        names = {event.get("name") for event in json.load(trace)["traceEvents"]}
    assert {"data wait", "host-to-device", "forward"} <= names


def test_device_time_adds_up_to_the_step_of_a_busy_device(cuda):
    model = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096)).to(cuda)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = TrainStep(model, optimizer, nn.MSELoss(), StepPlan(mode=Mode.TRAIN, device=str(cuda)))
    feed = Feed(tuple(torch.randn(4096, 4096, device=cuda) for _ in range(2)))
    step(feed.next())
    clock = StepClock(cuda, lambda steps: [step(feed.next()) for _ in range(steps)] and steps)
    clock.run(3)
    recording = record_step(PLAIN, step, feed)
    assert PLAIN.step_ms * recording.device_busy_share == pytest.approx(clock.run(10).step_ms, rel=0.15)


class Sleeps(nn.Module):
    """Two kernels that do nothing for a while, one after the other or in two streams."""

    def __init__(self, side):
        super().__init__()
        self.side = side

    def forward(self, inputs):
        current = torch.cuda.current_stream()
        self.side.wait_stream(current)
        with torch.cuda.stream(self.side):
            torch.cuda._sleep(20_000_000)
        torch.cuda._sleep(20_000_000)
        current.wait_stream(self.side)
        return inputs + 1


def test_streams_that_overlap_count_once(cuda):
    feed = Feed(torch.ones(4, device=cuda))
    plan = StepPlan(mode=Mode.INFER, device=str(cuda))
    in_turn, overlapping = (
        record_step(PLAIN, InferStep(Sleeps(side), plan), feed)
        for side in (torch.cuda.current_stream(cuda), torch.cuda.Stream(cuda))
    )
    assert overlapping.device_busy_share == pytest.approx(in_turn.device_busy_share / 2, rel=0.2)
