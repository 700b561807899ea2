"""The machine's measured peak rates, and the precision of float32 products that they depend on."""

import os
from dataclasses import replace
from datetime import date, timedelta

import pytest
import torch

from advisor.machine.hardware import inspect_hardware
from advisor.records import Ceilings
from advisor.trial.profile import ceilings
from advisor.trial.profile.ceilings import convolutions_in_tf32, float32_products, products_in_tf32

pytestmark = pytest.mark.usefixtures("own_state")
CPU = torch.device("cpu")


# --- float32 --------------------------------------------------------------------------------------------------


def test_the_setting_for_float32_products_is_put_back():
    before = torch.get_float32_matmul_precision()
    with float32_products(tf32=True):
        assert products_in_tf32()
        with float32_products(tf32=False):
            assert not products_in_tf32()
        assert products_in_tf32()
    assert torch.get_float32_matmul_precision() == before
    assert convolutions_in_tf32() is True


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_either_interface_is_understood(precision):
    torch.set_float32_matmul_precision(precision)
    try:
        assert products_in_tf32() is (precision == "high")
    finally:
        torch.set_float32_matmul_precision("highest")


# --- ceilings -------------------------------------------------------------------------------------------------


def here():
    return ceilings.machine_name(CPU, inspect_hardware())


def made_up(**changes):
    """Ceilings that no machine has, as measured today."""
    known = {"float32": 1.0, "bfloat16": 2.0}
    options = {"copy_bytes_per_s": 3.0, "call_overhead_s": 4.0, "measured_on": date.today().isoformat()}
    return Ceilings(known, **options | changes)


def test_what_this_machine_can_do():
    measured = ceilings.measure_ceilings(CPU, ["float32", "bfloat16", "float64"], 2**30)
    assert set(measured.matmul_flops_per_s) == {"float32", "bfloat16", "float64"}
    assert all(rate > 1e8 for rate in measured.matmul_flops_per_s.values())
    assert measured.copy_bytes_per_s > 1e8
    assert 0 < measured.call_overhead_s < 1e-3
    assert measured.host_to_device_bytes_per_s == {}
    assert measured.measured_on == date.today().isoformat()


def test_what_finds_no_room_or_does_not_exist_is_left_out():
    cramped = ceilings.measure_ceilings(CPU, ["float32"], 2**18)
    assert cramped.matmul_flops_per_s == {}
    assert cramped.copy_bytes_per_s is None
    assert cramped.call_overhead_s > 0
    assert "bool" not in ceilings.measure_ceilings(CPU, ["bool"], 2**24).matmul_flops_per_s


def test_stored_ceilings_are_not_measured_again():
    ceilings.store_ceilings(here(), made_up())
    assert ceilings.machine_ceilings(CPU, torch.float32) == made_up()


def test_nothing_is_measured_shortly_before_a_trial_is_given_up():
    kept = replace(made_up(), matmul_flops_per_s={"bfloat16": 2.0})
    ceilings.store_ceilings(here(), kept)
    assert ceilings.machine_ceilings(CPU, torch.float32, left_s=0.5) == kept
    assert ceilings.machine_ceilings(CPU, torch.float32, left_s=60.0).matmul_flops_per_s["float32"] > 1e6


def test_a_type_that_is_missing_has_all_measured():
    ceilings.store_ceilings(here(), made_up())
    measured = ceilings.machine_ceilings(CPU, torch.float64)
    assert min(measured.matmul_flops_per_s.values()) > 1e6
    assert set(measured.matmul_flops_per_s) == {"float32", "bfloat16", "float64"}


def test_ceilings_of_a_bad_moment_are_measured_anew():
    ceilings.store_ceilings(here(), made_up())
    measured = ceilings.machine_ceilings(CPU, torch.float32, anew=True)
    assert measured.matmul_flops_per_s["float32"] > 1e6


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1, "machines": {"a": {"matmul_flops_per_s": 3}}}'])
def test_a_broken_file_is_as_good_as_none(tmp_path, text):
    file = tmp_path / "state" / "ceilings.json"
    file.parent.mkdir()
    file.write_text(text)
    assert ceilings.stored_ceilings("a") == Ceilings({})
    ceilings.store_ceilings("a", made_up())
    assert ceilings.stored_ceilings("a") == made_up()


@pytest.mark.parametrize("days", [-2, 31, 400])
def test_ceilings_of_another_month_are_as_good_as_none(days):
    ceilings.store_ceilings("a", made_up(measured_on=(date.today() - timedelta(days=days)).isoformat()))
    assert ceilings.stored_ceilings("a") == Ceilings({})
    ceilings.store_ceilings("a", made_up(measured_on="yesterday"))
    assert ceilings.stored_ceilings("a") == Ceilings({})


def test_machines_are_kept_side_by_side():
    ceilings.store_ceilings("a", made_up())
    ceilings.store_ceilings("b", made_up(copy_bytes_per_s=5.0))
    assert ceilings.stored_ceilings("a") == made_up()
    assert ceilings.stored_ceilings("b").copy_bytes_per_s == 5.0
    assert ceilings.stored_ceilings("c") == Ceilings({})


def test_threads_make_another_machine():
    one = here()
    torch.set_num_threads(2)
    assert here() != one
    assert "1 threads" in one


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_writable_is_no_error(tmp_path):
    (tmp_path / "state").mkdir(mode=0o500)
    ceilings.store_ceilings("a", made_up())
    assert ceilings.stored_ceilings("a") == Ceilings({})


def test_a_state_folder_that_cannot_be_one_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(tmp_path / "file"))
    ceilings.store_ceilings("a", made_up())
    assert ceilings.stored_ceilings("a") == Ceilings({})
