"""The machine's measured peak rates, and the precision of float32 products that they depend on."""

from datetime import date

import pytest
import torch

from advisor.records import Ceilings
from advisor.trial.profile import ceilings
from advisor.trial.profile.ceilings import convolutions_in_tf32, float32_matmul, float32_products

CPU = torch.device("cpu")


# --- float32 --------------------------------------------------------------------------------------------------


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


# --- ceilings -------------------------------------------------------------------------------------------------


def test_what_this_machine_can_do():
    measured = ceilings.measure_ceilings(CPU, ["float32", "bfloat16", "float64"], 2**30)
    assert set(measured.matmul_flops_per_s) == {"float32", "bfloat16", "float64"}
    assert all(rate > 1e8 for rate in measured.matmul_flops_per_s.values())
    assert measured.copy_bytes_per_s > 1e8
    assert 0 < measured.call_overhead_s < 1e-3
    assert measured.measured_on == date.today().isoformat()


def test_what_finds_no_room_or_does_not_exist_is_left_out():
    cramped = ceilings.measure_ceilings(CPU, ["float32"], 2**18)
    assert cramped.matmul_flops_per_s == {}
    assert cramped.copy_bytes_per_s is None
    assert cramped.call_overhead_s > 0
    assert "bool" not in ceilings.measure_ceilings(CPU, ["bool"], 2**24).matmul_flops_per_s


def test_the_type_of_the_step_is_measured_and_nothing_shortly_before_a_trial_is_given_up():
    measured = ceilings.machine_ceilings(CPU, torch.float64)
    assert set(measured.matmul_flops_per_s) == {"float32", "bfloat16", "float64"}
    assert ceilings.machine_ceilings(CPU, torch.float64, left_s=0.5) == Ceilings({})
