"""The profile of a workload as a real trial takes it."""

from dataclasses import dataclass
from pathlib import Path

from trial_processes import spec_of

from advisor.records import Activity, Finished, Outcome, Profile, Profiled, TrialKind
from advisor.runner.trials import Runner

WORKLOADS = Path(__file__).parent / "gpu" / "workloads"


@dataclass(frozen=True, slots=True)
class Taken:
    """A profile, and how long the instrumented pass took with everything in it."""

    profile: Profile
    seconds: float


def take_profile(workload: str, folder: Path, *, device: str, clock, measure_s: float = 1.0) -> Taken:
    """Run the baseline's trial of a target in ``tests/gpu/workloads`` (or of ``demo``); ``clock`` tells the seconds."""
    target = workload if workload == "demo" else str(WORKLOADS / workload)
    at: dict[str, float] = {}
    profiles: list[Profile] = []

    def listen(message):
        if isinstance(message, Activity):
            at[message.text] = clock()
        elif isinstance(message, Profiled):
            at["profiled"] = clock()
            profiles.append(message.profile)
        elif isinstance(message, Finished):
            at["finished"] = clock()

    times = {"measure_s": measure_s, "warmup_limit_s": 3.0 * measure_s, "timeout_s": 250.0}
    log_path = str(folder / "000-baseline.log")
    spec = spec_of(folder, target, device=device, kind=TrialKind.PROFILE, log_path=log_path, **times)
    result = Runner().run(spec, listen)
    assert result.outcome is Outcome.MEASURED, (result.reason, result.details)
    return Taken(profiles[0], at["profiled"] - at["profiling"])
