"""The comparison of two commands, for a person and as JSON."""

from typing import Any

from advisor.figures.formatting import format_bytes, format_ms, format_seconds
from advisor.proof.commands import Compared, Side

_LOSSES = {
    "": "none was seen",
    "same": "the same in both",
    "close": "close: within 2 %",
    "different": "different",
    "varying": "differ as much between two runs of one command: set a seed to compare them",
}


def as_text(found: Compared) -> str:
    """The result as a table."""
    a, b, comparison = found.a, found.b, found.comparison
    b_step_ms = a.step_ms / comparison.speedup  # the speed-up is the quotient of the two step times above it
    rows = [
        ("", "A", "B"),
        ("step", format_ms(a.step_ms), format_ms(b_step_ms)),
        ("peak memory", format_bytes(a.peak_bytes), format_bytes(b.peak_bytes)),
        ("first step after", format_seconds(a.startup_s), format_seconds(b.startup_s)),
        ("runs", str(len(a.runs)), str(len(b.runs))),
    ]
    busy = ("other programs", f"used {found.foreign_cores:.1f} cores: close them and run this again", "")
    rows += [busy] if found.is_open else []
    width = max(len(row[1]) for row in rows if row[2]) + 2
    interval = f"{comparison.speedup:.2f}x ({comparison.ci_low:.2f}-{comparison.ci_high:.2f})"
    return "\n".join(
        [
            f"A  {a.command}",
            f"B  {b.command}",
            *(f"{name:18}{one:{width}}{other}".rstrip() for name, one, other in rows),
            f"{'first losses':18}{_LOSSES[found.losses]}",
            f"B over A: {interval}, {found.verdict.value}",
        ]
    )


def as_json(found: Compared, min_speedup: float) -> dict[str, Any]:
    """The result with the figures of both sides."""
    comparison = found.comparison
    return {
        "a": _side_as_json(found.a),
        "b": _side_as_json(found.b),
        "speedup": comparison.speedup,
        "ci_low": comparison.ci_low,
        "ci_high": comparison.ci_high,
        "verdict": found.verdict.value,
        "foreign_cores": found.foreign_cores,
        "losses": found.losses,
        "min_speedup": min_speedup,
        "session_s": found.seconds,
    }


def _side_as_json(side: Side) -> dict[str, Any]:
    return {
        "command": side.command,
        "step_ms": side.step_ms,
        "peak_bytes": side.peak_bytes,
        "startup_s": side.startup_s,
        "first_losses": list(side.runs[0].losses),
        "runs": len(side.runs),
    }
