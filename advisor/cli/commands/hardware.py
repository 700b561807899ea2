"""``perf-advisor hardware``: this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from advisor.cli.parser import Parser
from advisor.errors import ExitCode
from advisor.figures.formatting import MISSING, format_bytes, link_rows

if TYPE_CHECKING:
    from advisor.records import GpuInfo, Hardware


def show(*, as_json: bool) -> int:
    """Describe the machine."""
    from advisor.machine.hardware import inspect_hardware
    from advisor.report.document import pairs
    from advisor.report.terminal import body_of, print_text

    hardware = inspect_hardware()
    if as_json:
        from advisor.export.json_report import strict_json

        print(strict_json(hardware, indent=2))
    else:
        print_text(body_of([pairs(_hardware_rows(hardware))]), sys.stdout)
    return ExitCode.OK


def parse(arguments: Sequence[str]) -> Callable[[], int]:
    """The command with its options, to be called. Raises UsageError."""
    parser = Parser("perf-advisor hardware", "Describe this machine: its CPU, memory and GPUs.")
    parser.add_argument("--json", action="store_true", help="as JSON")
    return partial(show, as_json=parser.parse(arguments).json)


def _hardware_rows(hardware: Hardware) -> Iterator[tuple[str, str]]:
    host = hardware.host
    yield "CPU", host.cpu
    yield "cores", f"{host.usable_cores} usable, {host.physical_cores} physical, {host.logical_cores} logical"
    yield "features", ", ".join(host.cpu_features) or "none of those that matter here"
    yield "memory", f"{format_bytes(host.memory_total_bytes)}, {format_bytes(host.memory_available_bytes)} available"
    yield "NUMA nodes", str(host.numa_nodes)
    yield "system", f"{host.system}, Python {host.python}"
    if hardware.gpu_note:
        yield "GPU", hardware.gpu_note
    for gpu in hardware.gpus:
        yield from _gpu_rows(gpu)
    for pairs, link in link_rows(hardware.links):
        yield f"GPUs {pairs}", link


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
    width = _of(gpu.pcie_width, gpu.pcie_width_max)
    yield "  PCIe", f"generation {_of(gpu.pcie_generation, gpu.pcie_generation_max)}, width {width}"
    if gpu.numa_node is not None:
        yield "  NUMA node", str(gpu.numa_node)
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
