"""Trials in lanes: each lane one after the other, the lanes at the same time; real processes throughout."""

import dataclasses
import time

import pytest
from trial_processes import building, gone, spec_of

from advisor.records import Activity, Outcome
from advisor.runner.trials import Runner

pytestmark = pytest.mark.usefixtures("real_sessions")


NOTES_ITS_PROCESS = "open(f'{__file__}.pid', 'w').write(str(os.getpid()))"


class Lanes:
    """Lanes over specs, with what came of each trial, and when it began and ended."""

    def __init__(self):
        self.results, self.spans = {}, {}

    def of(self, *specs):
        for spec in specs:
            began = time.monotonic()
            result = yield spec, lambda message: None
            self.results[spec.trial_id] = result
            self.spans[spec.trial_id] = (began, time.monotonic())


@pytest.fixture
def specs(tmp_path):
    def make(name, body="", **changes):
        (tmp_path / f"{name}.py").write_text(building(f"{NOTES_ITS_PROCESS}\n{body}"), encoding="utf-8")
        spec = spec_of(tmp_path, f"{name}.py", trial_id=name, **changes)
        return dataclasses.replace(spec, log_path=str(tmp_path / "logs" / f"{name}.log"))

    return make


def all_gone(folder):
    """Whether all processes that built a target have ended."""
    pids = [int(file.read_text()) for file in folder.glob("*.pid")]
    assert pids
    return all(map(gone, pids))


def test_lanes_run_at_the_same_time_and_a_trial_that_fails_or_hangs_ends_only_its_own(specs, tmp_path):
    lanes = Lanes()
    hanging = specs("hangs", "time.sleep(600)", timeout_s=3.0)
    raising = specs("raises", "raise ValueError('no')")
    Runner().run_lanes([lanes.of(hanging, specs("after")), lanes.of(raising, specs("second"), specs("third"))])
    outcomes = {name: result.outcome for name, result in lanes.results.items()}
    assert outcomes == {
        "hangs": Outcome.TIMED_OUT,
        "after": Outcome.MEASURED,
        "raises": Outcome.FAILED,
        "second": Outcome.MEASURED,
        "third": Outcome.MEASURED,
    }
    assert lanes.spans["raises"][0] < lanes.spans["hangs"][1]
    assert lanes.spans["hangs"][0] < lanes.spans["raises"][1]
    assert lanes.spans["third"][0] >= lanes.spans["second"][1]
    assert all_gone(tmp_path)


def test_cancelling_ends_the_trials_of_all_lanes(specs):
    runner, lanes = Runner(), Lanes()
    measuring = specs("one", measure_s=60.0, at_least_s=60.0)

    def cancelling():
        spec = specs("two", measure_s=60.0, at_least_s=60.0)
        lanes.results["two"] = yield spec, lambda message: isinstance(message, Activity) and runner.cancel()

    began = time.monotonic()
    runner.run_lanes([lanes.of(measuring), cancelling()])
    assert {result.outcome for result in lanes.results.values()} == {Outcome.CANCELLED}
    assert time.monotonic() - began < 50.0


def test_what_a_lane_raises_ends_the_others(specs, tmp_path):
    lanes = Lanes()

    def gives_up():
        yield specs("short"), lambda message: None
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        Runner().run_lanes([lanes.of(specs("long", measure_s=60.0, at_least_s=60.0)), gives_up()])
    assert lanes.results == {}
    assert all_gone(tmp_path)
