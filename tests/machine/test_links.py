"""The links between GPUs, read through a stand-in for NVML, and in words."""

from types import SimpleNamespace

from fake_nvml import FakeNvml, nvml_of

from advisor.figures.formatting import link_rows
from advisor.machine.hardware import inspect_hardware
from advisor.records import GpuLink


def links_of(library):
    return inspect_hardware(nvml_of(library)).links


def test_gpus_behind_a_switch_reach_each_other_over_all_their_nvlinks():
    links = links_of(FakeNvml(count=3))
    assert [(link.first, link.second) for link in links] == [(0, 1), (0, 2), (1, 2)]
    assert links[0] == GpuLink(0, 1, 18, "PCIe across NUMA nodes")
    assert link_rows(links) == [("all 3 pairs", "18 NVLinks")]


def test_only_links_that_lead_to_the_other_gpu_count_where_they_are_direct():
    library = FakeNvml(count=2)
    other_end = lambda handle, link: SimpleNamespace(busId="gpu1" if link < 4 else "gpu7")  # noqa: E731
    library.answers["nvmlDeviceGetNvLinkRemotePciInfo"] = other_end
    (link,) = links_of(library)
    assert link.nvlinks == 4


def test_gpus_without_nvlink_have_their_path_over_pcie():
    library = FakeNvml(count=2)
    library.nvlinks = 0
    assert link_rows(links_of(library)) == [("0-1", "no NVLink, PCIe across NUMA nodes")]


def test_a_driver_that_knows_no_links_leaves_pairs_without_a_path():
    asked = ("nvmlDeviceGetP2PStatus", "nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetMemoryAffinity")
    library = FakeNvml(count=2, refused=dict.fromkeys(asked, FakeNvml.NVML_ERROR_NOT_SUPPORTED))
    hardware = inspect_hardware(nvml_of(library))
    assert hardware.links == (GpuLink(0, 1),)
    assert link_rows(hardware.links) == [("0-1", "no NVLink")]


def test_pairs_with_the_same_link_share_a_row():
    near, far = GpuLink(0, 1, nvlinks=1), GpuLink(0, 2, path="a PCIe host bridge")
    assert link_rows([near, far, GpuLink(1, 2, path="a PCIe host bridge")]) == [
        ("0-1", "1 NVLink"),
        ("0-2, 1-2", "no NVLink, a PCIe host bridge"),
    ]
