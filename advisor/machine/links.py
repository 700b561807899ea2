"""The links between GPUs, as NVML describes them: NVLinks, the path over PCIe, and the NUMA node of each GPU."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from itertools import combinations
from typing import Any

from advisor.machine.nvml import Device, Nvml
from advisor.records import GpuLink

# The nearest common ancestor of two GPUs on PCIe, nearest first.
_PATHS = {
    "NVML_TOPOLOGY_INTERNAL": "the same board",
    "NVML_TOPOLOGY_SINGLE": "one PCIe switch",
    "NVML_TOPOLOGY_MULTIPLE": "several PCIe switches",
    "NVML_TOPOLOGY_HOSTBRIDGE": "a PCIe host bridge",
    "NVML_TOPOLOGY_NODE": "PCIe within a NUMA node",
    "NVML_TOPOLOGY_SYSTEM": "PCIe across NUMA nodes",
}
_NVLINK_VERSIONS = ("1_0", "2_0", "2_2", "3_0", "3_1", "4_0", "5_0", "6_0")
# Links of a GPU that are asked for at most where the binding does not say; Blackwell has 18. A count.
_MOST_LINKS = 18
# NUMA nodes that are told apart at most. A count.
_MOST_NODES = 64


def gpu_links(nvml: Nvml, indexes: Collection[int]) -> tuple[GpuLink, ...]:
    """The link of each pair of GPUs with these indexes, without pairs of which a GPU does not answer."""
    found = []
    for first, second in combinations([device for device in nvml.devices if device.index in indexes], 2):
        with suppress(nvml.error):
            found.append(_link(nvml, first, second))
    return tuple(found)


def numa_node(nvml: Nvml, handle: Any) -> int | None:
    """The NUMA node whose memory is nearest to a GPU; None where the driver does not say."""
    words = nvml.ask("nvmlDeviceGetMemoryAffinity", handle, 1, nvml.constant("NVML_AFFINITY_SCOPE_NODE"))
    nodes = int(words[0]) if words else 0
    return next((node for node in range(_MOST_NODES) if nodes >> node & 1), None)


def _link(nvml: Nvml, first: Device, second: Device) -> GpuLink:
    path = _path(nvml, first, second)
    active = _nvlinks_between(nvml, first, second)
    if not active:
        return GpuLink(first.index, second.index, path=path)
    version = _version(nvml, nvml.ask("nvmlDeviceGetNvLinkVersion", first.handle, active[0]))
    speed = _bytes_per_s(nvml, first.handle, active[0])
    return GpuLink(first.index, second.index, len(active), version, speed, path)


def _path(nvml: Nvml, first: Device, second: Device) -> str:
    ancestor = nvml.ask("nvmlDeviceGetTopologyCommonAncestor", first.handle, second.handle)
    return next((words for name, words in _PATHS.items() if ancestor == nvml.constant(name)), "")


def _nvlinks_between(nvml: Nvml, first: Device, second: Device) -> list[int]:
    """The numbers of the first GPU's NVLinks over which it reaches the second, directly or through NVSwitch."""
    index = nvml.constant("NVML_P2P_CAPS_INDEX_NVLINK")
    if nvml.ask("nvmlDeviceGetP2PStatus", first.handle, second.handle, index) != nvml.constant("NVML_P2P_STATUS_OK"):
        return []
    mine, theirs = _active(nvml, first.handle), _active(nvml, second.handle)
    bus = _bus_id(nvml.ask("nvmlDeviceGetPciInfo", second.handle))
    direct = [link for link in mine if _bus_id(nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", first.handle, link)) == bus]
    return direct if direct and bus else mine[: len(theirs)]


def _active(nvml: Nvml, handle: Any) -> list[int]:
    links = range(nvml.constant("NVML_NVLINK_MAX_LINKS") or _MOST_LINKS)
    return [link for link in links if nvml.ask("nvmlDeviceGetNvLinkState", handle, link) == 1]


def _bus_id(pci: Any) -> Any:
    return getattr(pci, "busId", None)


def _version(nvml: Nvml, code: int | None) -> str | None:
    names = (name for name in _NVLINK_VERSIONS if code and code == nvml.constant(f"NVML_NVLINK_VERSION_{name}"))
    return next((name.replace("_", ".") for name in names), None)


def _bytes_per_s(nvml: Nvml, handle: Any, link: int) -> int | None:
    """The rate of one NVLink in one direction, which NVML gives in megabytes a second."""
    field = nvml.constant("NVML_FI_DEV_NVLINK_GET_SPEED")
    answers = nvml.ask("nvmlDeviceGetFieldValues", handle, [(field, link)]) if field else None
    answer = answers[0] if answers else None
    if answer is None or answer.nvmlReturn != nvml.constant("NVML_SUCCESS") or not answer.value.uiVal:
        return None
    return int(answer.value.uiVal) * 1_000_000
