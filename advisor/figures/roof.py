"""The distance between a step and the machine's peak rates, and upper bounds for shortening a part of a step.

Pure functions on a profile: the search, the app and the reports share them.
"""

from collections.abc import Iterable, Mapping

from advisor.records import Phase, Profile, Value

# A step that waits for its data for a larger share than this is bound by its input.
INPUT_BOUND_SHARE = 0.3
# A bound of a hundred times says no more than that the phases are all of the step.
_MOST_OF_A_STEP = 0.99
_HALF = ("bfloat16", "float16")


def step_roof_share(profile: Profile) -> float | None:
    """The arithmetic rate of the profiled step over the machine's matrix-product rate, about 0 to 1.

    None without FLOPs or without a measured rate for the type that the step computes in.
    """
    return _share(_step_rate(profile.flops_per_step, profile), profile.ceiling_flops_per_s)


def step_copy_share(profile: Profile) -> float | None:
    """The bytes that the step's operators read and write per second over the machine's copy rate.

    It is an estimate (each operator's tensors counted once), and above 1 where caches serve much of them.
    """
    return _share(_step_rate(profile.moved_bytes_per_step, profile), profile.copy_bytes_per_s)


def overhead_share(profile: Profile) -> float | None:
    """The share of a step, 0 to 1, that calling operators costs apart from their work; None when not counted."""
    if profile.calls_per_step is None or profile.call_overhead_s is None:
        return None
    return min(1.0, profile.calls_per_step * profile.call_overhead_s / (profile.step_ms / 1e3))


def ceiling_of(profile: Profile, dtype: str | None) -> float | None:
    """The machine's matrix-product rate for a type (float32, tf32, bfloat16, float16), FLOP/s; None if not measured."""
    return profile.ceilings.matmul_flops_per_s.get(dtype or "") if profile.ceilings else None


def roof_share(profile: Profile, samples_per_s: float, batch_size: int | None, dtype: str | None) -> float | None:
    """The share of the roof that a throughput reaches, about 0 to 1, before or after settings were applied.

    ``batch_size`` is the profiled step's (not that of the throughput: a sample takes the same work in any batch), and
    ``dtype`` the type that the settings compute in, see :func:`dtype_under`. None where either is not known.
    """
    if not profile.flops_per_step or not batch_size:
        return None
    return _share(profile.flops_per_step / batch_size * samples_per_s, ceiling_of(profile, dtype))


def dtype_under(profile: Profile, settings: Mapping[str, Value]) -> str | None:
    """The number type of most arithmetic when these settings are added to the user's own.

    None if they switch off a type that the profile was taken with: the type without it was not measured.
    """
    chosen = [settings.get(key) for key in ("precision.autocast", "precision.weights")]
    half = next((dtype for dtype in chosen if dtype in _HALF), None)
    if half is not None:
        return str(half)
    profiled = profile.ceiling_dtype
    if profiled in _HALF and "none" in chosen:  # what was switched off hid the type of the parameters
        return None
    precision = settings.get("precision.float32_matmul")
    if profiled in ("float32", "tf32") and precision is not None:
        return "float32" if precision == "highest" else "tf32"
    return profiled


def upper_bound(profile: Profile, phases: Iterable[Phase]) -> float | None:
    """The largest speed-up that shortening these phases to nothing can give; None when none of them was measured.

    Amdahl's law on the instrumented phases over the timed step. Those are synchronised at each boundary and so not
    shorter than their share of a step whose parts overlap: the true gain is no larger, apart from the measurement's
    noise.
    """
    measured = [profile.phases[phase] for phase in phases if phase in profile.phases]
    if not measured or profile.step_ms <= 0:
        return None
    return 1 / (1 - min(_MOST_OF_A_STEP, sum(measured) / profile.step_ms))


def _step_rate(amount: float | None, profile: Profile) -> float | None:
    return amount / (profile.step_ms / 1e3) if amount and profile.step_ms > 0 else None


def _share(rate: float | None, ceiling: float | None) -> float | None:
    return rate / ceiling if rate and ceiling else None
