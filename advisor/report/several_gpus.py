"""Several GPUs: strategies and options compared with one GPU, and the command that starts a script on them."""

from collections.abc import Iterator, Mapping

from advisor.experiment.scaling_records import ScalingRecord, ScalingRow
from advisor.experiment.state import SessionState
from advisor.figures.formatting import MISSING, format_bytes, format_interval, format_ms, format_percent, format_rate
from advisor.recipe import SINGLE, STRATEGY
from advisor.records import Comparison, Value
from advisor.report.document import Section, section, table_of

_BRIEF = ("Settings", "Speed", "Against one GPU", "Efficiency", "Exposed communication")


def several_gpus_section(record: ScalingRecord | None) -> Section | None:
    """The section on several GPUs; None if the session measured nothing on them."""
    if record is None or not record.rows:
        return None
    remarks = [
        *([f"Bound by {record.evidence}."] if record.evidence else []),
        *(f"Left out on several GPUs: {key}, since {reason}." for key, reason in record.left_out.items()),
        *(f"Not tried: {name}, since {reason}." for name, reason in record.passed_over.items()),
    ]
    if record.device_type == "cpu":
        remarks.append("The processes share the cores of a CPU (gloo): this shows that it runs, not what GPUs gain.")
    table = table_of(list(map(_cells, record.rows)), ("Settings", "Remark"), brief=_BRIEF, remarks="Remark")
    return section("Several GPUs", result_sentence(record), table, tuple(remarks))


def result_sentence(record: ScalingRecord) -> str:
    """The speed of several GPUs against one, or the reason that there is none. The record must have a row."""
    places = f"{record.gpus} GPUs" if record.device_type == "cuda" else f"{record.gpus} processes"
    if record.rows[0].step_ms is None:
        return f"Several GPUs were not measured: {record.rows[0].reason}"
    if not any(row.step_ms is not None for row in record.rows[1:]):
        if failed := [f"{row.name}: {row.reason.rstrip('.')}." for row in record.rows[1:]]:
            return " ".join((f"Nothing on {places} could be measured.", *failed))
        return f"Nothing was measured on {places} before the session ended: raise --budget."
    best = record.row(record.best) if record.best else None
    if best is None:
        return f"At the same global batch nothing on {places} was faster than one GPU with its own settings."
    return f"{row_words(best)}, {'' if record.confirmed else 'not '}timed in turn at the same global batch."


def row_words(row: ScalingRow) -> str:
    """The text of a row: ``2 GPUs, ddp: 1.72x (1.65-1.79) one GPU, efficiency 86 %``."""
    if row.gpus == 1:
        return f"one GPU, tuned: {format_rate(row.samples_per_s)}" if row.step_ms else f"one GPU: {row.reason}"
    where = f"{row.gpus} GPUs, {row.name}"
    if row.step_ms is None:
        return f"{where}: failed ({row.reason})"
    against = f"the samples/s of one GPU at {row.gpus} times its global batch" if row.weak else "one GPU"
    speed = f"{format_interval(comparison_of(row))} {against}, efficiency {format_percent(row.efficiency)}"
    return f"{where}: {speed} ({row.reason})" if row.reason else f"{where}: {speed}"


def _cells(row: ScalingRow) -> dict[str, str]:
    """The cells of a row by their headings."""
    several, peaks = row.gpus > 1, row.peak_reserved_bytes
    exposed = f"{format_percent(row.exposed_share)}, {format_ms(row.exposed_ms)}"
    return {
        "Settings": row.name,
        "Batch (each GPU)": MISSING if row.global_batch is None else f"{row.global_batch} ({row.batch_per_gpu})",
        "Step": format_ms(row.step_ms),
        "Speed": format_rate(row.samples_per_s),
        "Against one GPU": format_interval(comparison_of(row)) if several else MISSING,
        "Efficiency": format_percent(row.efficiency) if several else MISSING,
        "Exposed communication": MISSING if row.exposed_ms is None else exposed,
        "Straggler": format_percent(row.straggler_share, digits=1),
        "Memory of a GPU": format_bytes(max(peaks)) if peaks else MISSING,
        "Losses": MISSING if row.loss_difference is None else f"{row.loss_difference:.1e}",
        "Remark": row.reason or (f"another training, at {row.gpus} times its global batch" if row.weak else ""),
    }


def comparison_of(row: ScalingRow) -> Comparison | None:
    """The speed-up over one GPU with its interval; None if the trial failed."""
    if row.speedup is None or row.ci_low is None or row.ci_high is None:
        return None
    return Comparison(row.speedup, row.ci_low, row.ci_high)


def gpus_to_start(state: SessionState, settings: Mapping[str, Value]) -> int:
    """The number of processes for which the settings are made."""
    over_ranks = settings.get(STRATEGY, SINGLE) != SINGLE
    return state.scaling.gpus if state.scaling and over_ranks else 1


def launch_lines(state: SessionState, settings: Mapping[str, Value]) -> Iterator[str]:
    """The commands that start a script with these settings on several GPUs; empty for settings of one process."""
    gpus = gpus_to_start(state, settings)
    if gpus == 1 or state.scaling is None:
        return
    where = f", on each of the {state.scaling.machines} machines" if state.scaling.machines > 1 else ""
    yield f"Start your script in a process for each GPU{where}:"
    yield f"  {launch_command(state.scaling)}"
    size = settings.get("data.batch_size") or (state.facts.workload.batch_size if state.facts else None)
    if isinstance(size, int):
        yield f"A batch of {size} is for all {gpus} processes together: {size / gpus:g} samples in each."


def launch_command(scaling: ScalingRecord) -> str:
    """The command that starts a script with one process for each GPU; it is the same on each machine."""
    here = f"--nproc-per-node {scaling.gpus // scaling.machines} your_script.py"
    if scaling.machines == 1:
        return f"torchrun --standalone {here}"
    return f"torchrun --nnodes {scaling.machines} --rdzv-backend c10d --rdzv-endpoint HOST:PORT {here}"
