"""The commands beside measuring: recipes, hardware, sessions, open, compare, report, export.

Text goes to standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import singledispatch
from pathlib import Path

from rich.table import Table
from rich.text import Text

from advisor.cli import options
from advisor.errors import ExitCode, UsageError
from advisor.experiment.journal import list_sessions, open_session
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.export.outputs import write_outputs
from advisor.export.recipe_table import numerics_text
from advisor.figures.formatting import MISSING, format_bytes, format_seconds, plain, printable
from advisor.headless import print_summary, print_text, table
from advisor.machine.hardware import inspect_hardware
from advisor.recipe import BOTH_MODES, Recipe, card
from advisor.recipe.catalog import Catalog, load_catalog, load_catalog_again
from advisor.records import GpuInfo, Hardware, HostInfo, Mode, text_of
from advisor.records.outputs import Outputs
from advisor.report.comparison import Measured, compare, summary
from advisor.report.listing import result_line

_MODES = {mode: mode.value for mode in Mode}


@singledispatch
def run(invocation: options.Invocation) -> int:
    """Carry out a command and return the exit code. Raises AdvisorError."""
    raise TypeError(f"unknown invocation {invocation!r}")


# --- recipes --------------------------------------------------------------------------------------------------


@run.register
def _(invocation: options.ShowRecipes) -> int:
    catalog = load_catalog(invocation.folders)
    for problem in catalog.problems:
        print(f"warning: {plain(problem)}", file=sys.stderr)
    if invocation.recipe_id is None:
        _list_recipes(catalog)
    elif invocation.recipe_id in catalog.recipes:
        _show_recipe(catalog.recipes[invocation.recipe_id])
    else:
        raise options.unknown_recipe(invocation.recipe_id, tuple(catalog.recipes))
    return ExitCode.OK


def _list_recipes(catalog: Catalog) -> None:
    made = table("id", "key", "modes", "devices", "numerics", "title")
    for column in made.columns[:2]:
        column.no_wrap = True  # they are copied, and searched for
    for recipe in catalog:
        numerics = numerics_text(recipe, _MODES)
        made.add_row(recipe.id, recipe.key, _modes(recipe), _devices(recipe), numerics, plain(recipe.title))
    print_text(made, sys.stdout)


def _show_recipe(recipe: Recipe) -> None:
    facts = {
        "id": recipe.id,
        "setting": recipe.key,
        "default": text_of(recipe.default),
        "modes": _modes(recipe),
        "devices": _devices(recipe),
        "numerics": numerics_text(recipe, _MODES),
        "attacks": ", ".join(sorted(recipe.attacks)) or MISSING,
    }
    print(printable(card(recipe)))
    print()
    print_text(_pairs(facts.items()), sys.stdout)


def _modes(recipe: Recipe) -> str:
    return "both" if recipe.modes == BOTH_MODES else ", ".join(sorted(recipe.modes))


def _devices(recipe: Recipe) -> str:
    return ", ".join(sorted(recipe.devices))


# --- hardware -------------------------------------------------------------------------------------------------


@run.register
def _(invocation: options.ShowHardware) -> int:
    hardware = inspect_hardware()
    if invocation.as_json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(hardware), indent=2).decode())
    else:
        print_text(_pairs(_hardware_rows(hardware)), sys.stdout)
    return ExitCode.OK


def _hardware_rows(hardware: Hardware) -> Iterator[tuple[str, str]]:
    yield from _host_rows(hardware.host)
    if hardware.gpu_note:
        yield "GPU", hardware.gpu_note
    for gpu in hardware.gpus:
        yield from _gpu_rows(gpu)


def _host_rows(host: HostInfo) -> Iterator[tuple[str, str]]:
    yield "CPU", host.cpu
    yield "cores", f"{host.usable_cores} usable, {host.physical_cores} physical, {host.logical_cores} logical"
    yield "features", ", ".join(host.cpu_features) or "none of those that matter here"
    yield "memory", f"{format_bytes(host.memory_total_bytes)}, {format_bytes(host.memory_available_bytes)} available"
    yield "NUMA nodes", str(host.numa_nodes)
    yield "system", f"{host.system}, Python {host.python}"


def _gpu_rows(gpu: GpuInfo) -> Iterator[tuple[str, str]]:
    capability = ".".join(map(str, gpu.compute_capability)) if gpu.compute_capability else MISSING
    yield f"GPU {gpu.index}", f"{gpu.name}, compute capability {capability}"
    yield "  UUID", gpu.uuid
    yield "  driver", f"{gpu.driver_version}, CUDA up to {gpu.cuda_driver_version or MISSING}"
    yield "  memory", f"{format_bytes(gpu.memory_total_bytes)}, {format_bytes(gpu.memory_used_bytes)} in use"
    yield "  SM clock", _of(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz, "MHz")
    yield "  memory clock", _of(gpu.memory_clock_mhz, gpu.memory_clock_max_mhz, "MHz")
    yield "  power", _of(gpu.power_w, gpu.power_limit_w, "W")
    yield "  temperature", MISSING if gpu.temperature_c is None else f"{gpu.temperature_c} °C"
    yield (
        "  PCIe",
        f"generation {_of(gpu.pcie_generation, gpu.pcie_generation_max)}, "
        + (f"width {_of(gpu.pcie_width, gpu.pcie_width_max)}"),
    )
    yield "  ECC, MIG", f"{_on(gpu.ecc_enabled)}, {_on(gpu.mig_enabled)}"
    yield "  throttled by", ", ".join(gpu.throttle_reasons) or "nothing"
    for process in gpu.processes:
        yield "  also used by", f"{process.name} ({process.pid}), {format_bytes(process.used_memory_bytes)}"


def _of(now: float | None, most: float | None, unit: str = "") -> str:
    """A gauge and its maximum: ``1755 of 1980 MHz``."""
    if now is None:
        return MISSING
    return f"{now:.0f}{'' if most is None else f' of {most:.0f}'} {unit}".rstrip()


def _on(enabled: bool | None) -> str:
    return MISSING if enabled is None else "on" if enabled else "off"


def _pairs(rows: Iterable[tuple[str, str]]) -> Table:
    made = table("", "")
    made.show_header = False
    for name, text in rows:
        made.add_row(Text(name, style="bold"), Text(plain(text)))
    return made


# --- recorded sessions ----------------------------------------------------------------------------------------


@run.register
def _(invocation: options.ShowSessions) -> int:
    made = table("session", "target", "result", "length")
    for past in list_sessions():
        state = SessionState.of(past.events)
        length = format_seconds(state.finished.session_s) if state.finished else MISSING
        made.add_row(past.session_id, plain(past.request.target.command), result_line(state), length)
    if made.row_count:
        print_text(made, sys.stdout)
    else:
        print("There is no session yet: `perf-advisor demo` makes one.")
    return ExitCode.OK


@run.register
def _(invocation: options.Open) -> int:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "open shows a session in the app, and this is no terminal.",
            f"`perf-advisor report {invocation.session_id}".rstrip() + "` prints it.",
        )
    from advisor.tui.launch import show_session

    return show_session(invocation.session_id)


@run.register
def _(invocation: options.Compare) -> int:
    before, after = (_measured(session_id) for session_id in (invocation.before, invocation.after))
    print(f"From {_named(before)}\nto   {_named(after)}:\n{plain(summary(before, after))}")
    for kind in compare(before, after):
        made = table("", before.session_id, after.session_id, "")
        for change in kind.changes:
            style = "" if change.matters else "dim"
            made.add_row(
                *(Text(plain(text), style) for text in (change.what, change.before, change.after, change.told))
            )
        print(f"\n{kind.title}")
        print_text(made, sys.stdout)
    return ExitCode.OK


def _measured(session_id: str) -> Measured:
    past = open_session(session_id)
    return Measured(past.session_id, past.request, SessionState.of(past.events))


def _named(session: Measured) -> str:
    return f"{session.session_id}, {plain(session.request.target.command)}: {result_line(session.state)}"


@run.register
def _(invocation: options.Revisit) -> int:
    past = open_session(invocation.session_id or None)
    state, catalog = SessionState.of(past.events), load_catalog_again(past.request.recipe_folders)
    if past.damaged:
        print(f"warning: {past.damaged} lines of the session's journal cannot be read.", file=sys.stderr)
    if invocation.show:
        file = sys.stderr if invocation.outputs.json_to_stdout else sys.stdout
        print(f"Session {past.session_id}, {plain(past.request.target.command)}: {result_line(state)}", file=file)
        print_summary(state, file, catalog)
    outputs = _with_recorded_map(invocation.outputs, past.request)
    written = write_outputs(state, past.request, outputs, catalog)
    for sentence in written.sentences:
        print(plain(sentence), file=sys.stderr)
    if written.errors:
        raise written.errors[0]
    return ExitCode.OK


def _with_recorded_map(outputs: Outputs, request: Request) -> Outputs:
    """The outputs, with the --map that the session was given for the same config where the command line has none."""
    same = outputs.config_path and request.config_path == str(Path(outputs.config_path).resolve())
    return replace(outputs, key_map=request.key_map) if same and not outputs.key_map else outputs
