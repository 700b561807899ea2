"""The distance between a step and the machine's peak rates, and upper bounds for shortening a part of a step.

Pure functions on a profile, which the search, the app and the reports share.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from advisor.figures.formatting import format_percent, format_rate
from advisor.records import Phase, Profile, Value

# A step that waits for data for a larger share than this is bound by its input.
INPUT_BOUND_SHARE = 0.3
# A bound of a hundred times only says that the phases are the whole step.
_MOST_OF_A_STEP = 0.99
_HALF = ("bfloat16", "float16")


def step_roof_share(profile: Profile) -> float | None:
    """The arithmetic rate of the profiled step over the machine's matrix-product rate, about 0 to 1.

    None without FLOPs, or without a measured rate for the type in which the step computes.
    """
    return _share(profile.flops_per_step, profile.ceiling_flops_per_s, profile)


def step_copy_share(profile: Profile) -> float | None:
    """The bytes that the step's operators read and write per second over the machine's copy rate.

    It is an estimate (each operator's tensors count once). It exceeds 1 if caches serve many of them.
    """
    return _share(profile.moved_bytes_per_step, profile.copy_bytes_per_s, profile)


def overhead_share(profile: Profile) -> float | None:
    """The share of a step, 0 to 1, that calling operators costs apart from their work; None if not counted."""
    if profile.calls_per_step is None or profile.call_overhead_s is None:
        return None
    return min(1.0, profile.calls_per_step * profile.call_overhead_s / (profile.step_ms / 1e3))


@dataclass(frozen=True, slots=True)
class RoofShare:
    """A throughput as a share, about 0 to 1, of the machine's peak rate of matrix products in a number type."""

    share: float
    ceiling_flops_per_s: float
    dtype: str

    @property
    def words(self) -> str:
        """The share in words: ``94 % of 51.0 TFLOP/s float32``."""
        return f"{format_percent(self.share)} of {format_rate(self.ceiling_flops_per_s, 'FLOP')} {self.dtype}"


def roof_share(
    profile: Profile, samples_per_s: float | None, batch_size: int | None, dtype: str | None
) -> RoofShare | None:
    """The share of the roof that a throughput reaches, before or after settings were applied; None if not known.

    ``batch_size`` is the profiled step's, not the throughput's: a sample takes the same work in any batch. ``dtype`` is
    the type in which the settings compute, see :func:`dtype_under`.
    """
    ceiling = profile.ceilings.matmul_flops_per_s.get(dtype or "") if profile.ceilings else None
    if not (dtype and ceiling and profile.flops_per_step and batch_size and samples_per_s):
        return None
    return RoofShare(profile.flops_per_step / batch_size * samples_per_s / ceiling, ceiling, dtype)


def dtype_under(profile: Profile, settings: Mapping[str, Value]) -> str | None:
    """The number type of most arithmetic when these settings are added to the user's own.

    None if they switch off a type that was on in the profile, since the type without it was not measured.
    """
    chosen = [settings.get(key) for key in ("precision.autocast", "precision.weights")]
    half = next((dtype for dtype in chosen if dtype in _HALF), None)
    if half is not None:
        return str(half)
    profiled = profile.ceiling_dtype
    if profiled in _HALF and "none" in chosen:  # the type that was switched off hid the type of the parameters
        return None
    precision = settings.get("precision.float32_matmul")
    if profiled in ("float32", "tf32") and precision is not None:
        return "float32" if precision == "highest" else "tf32"
    return profiled


def upper_bound(profile: Profile, phases: Iterable[Phase]) -> float | None:
    """The largest speed-up that shortening these phases to nothing can give; None if none of them was measured.

    It is Amdahl's law with the instrumented phases and the timed step. Instrumented phases are synchronised at each
    boundary, so they are not shorter than their share of a step whose parts overlap. The true gain is no larger, apart
    from noise.
    """
    measured = [profile.phases[phase] for phase in phases if phase in profile.phases]
    if not measured or profile.step_ms <= 0:
        return None
    return 1 / (1 - min(_MOST_OF_A_STEP, sum(measured) / profile.step_ms))


def _share(amount: float | None, peak_per_s: float | None, profile: Profile) -> float | None:
    """The rate of a step divided by the machine's peak rate; ``amount`` is what one step computes or moves."""
    return amount / (profile.step_ms / 1e3) / peak_per_s if amount and peak_per_s and profile.step_ms > 0 else None
