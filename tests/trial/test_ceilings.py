"""The machine's measured peak rates, and the precision of float32 products that they depend on."""

from datetime import date

import pytest
import torch

from advisor.records import Ceilings
from advisor.trial.profile import ceilings
from advisor.trial.profile.ceilings import convolutions_in_tf32, float32_matmul, float32_products

CPU = torch.device("cpu")


def test_the_setting_for_float32_products_is_put_back():
    before = torch.get_float32_matmul_precision()
    with float32_products(tf32=True):
        assert float32_matmul() == "high"
        with float32_products(tf32=False):
            assert float32_matmul() == "highest"
        assert float32_matmul() == "high"
    assert torch.get_float32_matmul_precision() == before
    assert convolutions_in_tf32() is True


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_either_interface_is_understood(precision):
    torch.set_float32_matmul_precision(precision)
    try:
        assert float32_matmul() == precision
    finally:
        torch.set_float32_matmul_precision("highest")


def test_what_this_machine_can_do_in_the_type_of_the_step_too():
    measured = ceilings.machine_ceilings(CPU, torch.float64)
    assert set(measured.matmul_flops_per_s) == {"float32", "bfloat16", "float64"}
    assert all(rate > 1e8 for rate in measured.matmul_flops_per_s.values())
    assert measured.copy_bytes_per_s > 1e8
    assert 0 < measured.call_overhead_s < 1e-3
    assert measured.measured_on == date.today().isoformat()


def test_what_does_not_exist_or_finds_no_room_is_left_out(monkeypatch):
    assert "bool" not in ceilings.machine_ceilings(CPU, torch.bool).matmul_flops_per_s
    monkeypatch.setattr(ceilings, "_ROOM_SHARE", 1e-9)
    cramped = ceilings.machine_ceilings(CPU, torch.float32)
    assert cramped.matmul_flops_per_s == {}
    assert cramped.copy_bytes_per_s is None
    assert cramped.call_overhead_s > 0


def test_nothing_is_measured_shortly_before_a_trial_is_given_up():
    assert ceilings.machine_ceilings(CPU, torch.float64, left_s=0.5) == Ceilings({})
