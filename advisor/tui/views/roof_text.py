"""How far a step is from what the machine can do. Pure functions."""

from __future__ import annotations

from textual.content import Content

from advisor.formatting import format_bytes, format_count, format_ms, format_percent, format_rate
from advisor.records import Ceilings, Profile
from advisor.roof import ceiling_of, dtype_under, overhead_share, roof_share, step_copy_share, step_roof_share
from advisor.session.state import SessionState
from advisor.tui.text import DIM, meter
from advisor.tui.widgets.fact_list import Fact

_BAR = 12


def roof_facts(profile: Profile | None, *, on_gpu: bool) -> list[Fact]:
    """Achieved against possible: arithmetic, traffic, how busy the device is, kernels, and the ceilings themselves."""
    if profile is None:
        return []
    rows: list[Fact] = [("Step", format_ms(profile.step_ms)), *_arithmetic(profile), *_traffic(profile)]
    if profile.device_busy_share is not None:
        rows.append(("GPU busy" if on_gpu else "Busy", _metered(profile.device_busy_share)))
    if profile.kernels_per_step is not None:
        rows.append(("Kernels", f"{format_count(round(profile.kernels_per_step))} a step"))
    if profile.tensor_core_share is not None:
        rows += [("Tensor", _metered(profile.tensor_core_share)), ("", _dim("of kernel time on tensor cores"))]
    return [*rows, *_calls(profile), *ceiling_facts(profile.ceilings, profile.ceiling_dtype)]


def _metered(share: float) -> Content:
    return Content.assemble(meter(share, _BAR, "$primary"), f" {format_percent(share)}")


def _dim(text: str) -> Content:
    return Content.styled(text, DIM)


def _arithmetic(profile: Profile) -> list[Fact]:
    if not profile.flops_per_step or profile.step_ms <= 0:
        return []
    achieved = format_rate(profile.flops_per_step / (profile.step_ms / 1e3), "FLOP")
    rows: list[Fact] = [("Work", f"{format_count(profile.flops_per_step)}FLOP a step")]
    share = step_roof_share(profile)
    if share is None:
        return [*rows, ("Achieved", achieved)]
    dtype = f" in {profile.ceiling_dtype}" if profile.ceiling_dtype else ""
    of = f"of {format_rate(profile.ceiling_flops_per_s, 'FLOP')}{dtype}"
    return [*rows, ("Achieved", _metered(share)), ("", achieved), ("", _dim(of))]


def _traffic(profile: Profile) -> list[Fact]:
    rows: list[Fact] = []
    share = step_copy_share(profile)
    if share is not None:
        rows += [
            ("Memory", _metered(share)),
            ("", _dim(f"{format_bytes(profile.moved_bytes_per_step)} a step, of {_copies(profile)}")),
        ]
    elif profile.copy_bytes_per_s is not None:
        rows.append(("Copies", f"{_copies(profile)} at most"))
    if profile.host_to_device_bytes:
        rows.append(("Input", f"{format_bytes(profile.host_to_device_bytes)} copied a step"))
    return rows


def _copies(profile: Profile) -> str:
    return format_rate(profile.copy_bytes_per_s, "B")


def _calls(profile: Profile) -> list[Fact]:
    share = overhead_share(profile)
    if share is None:
        return []
    calls = f"{format_count(profile.calls_per_step)} operator calls, at least"
    return [("Calls", _metered(share)), ("", _dim(f"{calls} {format_ms(1e3 * (profile.call_overhead_s or 0))} each"))]


def ceiling_facts(ceilings: Ceilings | None, used: str | None) -> list[Fact]:
    """What the machine can do at most, by type, and when that was measured; the type that the step uses stands out."""
    if ceilings is None:
        return []
    rates = ceilings.matmul_flops_per_s
    rows: list[Fact] = []
    for dtype, rate in sorted(rates.items(), key=lambda item: item[1]):
        shown = f"{format_rate(rate, 'FLOP'):>12}  {dtype}"
        rows.append(("Ceilings" if not rows else "", Content.styled(shown, "bold" if dtype == used else "")))
    if ceilings.copy_bytes_per_s is not None:
        rows.append(("", f"{format_rate(ceilings.copy_bytes_per_s, 'B'):>12}  device memory"))
    for kind, rate in ceilings.host_to_device_bytes_per_s.items():
        rows.append(("", f"{format_rate(rate, 'B'):>12}  copy from {kind}"))
    if rows and ceilings.measured_on:
        rows.append(("", _dim(f"measured on {ceilings.measured_on}")))
    return rows


def roof_before_and_after(state: SessionState) -> Content | None:
    """The share of the matrix-product roof that the baseline and the stack reach, each in its own type.

    None without FLOPs or a measured ceiling. The stack's share can be the smaller one: its roof may be higher.
    """
    facts, baseline = state.facts, state.baseline
    profile = facts.profile if facts else None
    if facts is None or profile is None or baseline is None:
        return None
    batch_size, stack = facts.workload.batch_size, state.stack
    tuned = stack if stack is not None and stack.settings and stack.samples_per_s is not None else None
    # The baseline beside the stack: on a machine that drifts the session's first has no part in the speed-up.
    own = (tuned.baseline_samples_per_s if tuned else None) or baseline.samples_per_s
    before = _reached(profile, own, batch_size, profile.ceiling_dtype)
    if before is None or tuned is None or tuned.samples_per_s is None:
        return before
    after = _reached(profile, tuned.samples_per_s, batch_size, dtype_under(profile, tuned.settings))
    return before if after is None else Content.assemble(before, (" → ", DIM), after)


def _reached(profile: Profile, samples_per_s: float, batch_size: int | None, dtype: str | None) -> Content | None:
    share = roof_share(profile, samples_per_s, batch_size, dtype)
    if share is None:
        return None
    ceiling = format_rate(ceiling_of(profile, dtype), "FLOP")
    return Content.assemble((format_percent(share), "bold"), (f" of {ceiling} {dtype}", DIM))
