"""Sessions by memory and energy, and under a memory limit, on the encoder and on a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

ENCODER = Path(__file__).parent / "workloads" / "encoder.py"
SAVING = "checkpointing,autocast,fused_optimizer"


def session(*options):
    """The JSON report of a headless session on the encoder."""
    command = [sys.executable, "-m", "advisor", f"{ENCODER}:build", "--budget", "60s", "--json", "-", *options]
    return json.loads(subprocess.check_output(command, text=True, timeout=180))


@pytest.fixture(scope="module")
def by_memory():
    return session("--objective", "memory", "--only", SAVING)


def test_by_memory_the_peak_falls_and_the_speed_stays(by_memory):
    baseline, stack = by_memory["baseline"], by_memory["stack"]
    assert stack["settings"]
    assert stack["confirmed"]
    assert stack["peak_reserved_bytes"] < 0.9 * baseline["peak_reserved_bytes"]
    assert stack["ci_low"] >= 0.9
    assert stack["gain"]["ratio"] == pytest.approx(baseline["peak_reserved_bytes"] / stack["peak_reserved_bytes"])
    gains = [item["gain"]["ratio"] for item in by_memory["recommendations"]]
    assert gains == sorted(gains, reverse=True)


def test_a_limit_below_the_baseline_is_met(by_memory):
    limit = round(0.85 * by_memory["baseline"]["peak_reserved_bytes"])
    report = session("--memory-limit", f"{limit}B", "--only", SAVING)
    assert report["stack"]["settings"]
    assert report["stack"]["peak_reserved_bytes"] <= limit
    assert all(trial["outcome"] != "failed" for trial in report["trials"])


def test_by_energy_every_trial_counts_it_and_half_precision_takes_less():
    report = session("--objective", "energy", "--only", "autocast,tf32")
    measured = [trial for trial in report["trials"] if trial["outcome"] == "measured"]
    assert len(measured) > 2
    assert all(trial["energy_j_per_sample"] > 0 for trial in measured)
    stack = report["stack"]
    assert "precision.autocast" in stack["settings"]
    assert stack["gain"]["low"] > 1 + stack["gain"]["floor"]
    assert stack["energy_j_per_sample"] < report["baseline"]["energy_j_per_sample"]
    control = next(trial for trial in measured if trial["recipe"] == "control")
    assert control["energy_j_per_sample"] == pytest.approx(report["baseline"]["energy_j_per_sample"], rel=0.1)
