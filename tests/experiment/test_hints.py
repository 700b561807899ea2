"""What a session leaves for the next one of the same workload."""

from dataclasses import replace

import pytest
from facts import gpu_facts

from advisor.experiment.consent import Consent
from advisor.experiment.past.resuming import HINTS_FILE, Hints, hints_for, save_hints, workload_name
from advisor.experiment.plan import Plan
from advisor.experiment.request import Request
from advisor.judging.judge import BASELINE
from advisor.recipe.catalog import load_catalog
from advisor.records import Numerics, TargetSpec

CATALOG = load_catalog()
TARGET = TargetSpec("mymodel:build", "/somewhere")


def planned(facts, hints):
    consent = Consent(CATALOG, facts.workload.mode, Numerics.CLOSE)
    return Plan(CATALOG, Request(TARGET), facts, consent, hints=hints).with_facts(facts)


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(tmp_path))
    return tmp_path


def test_hints_are_of_one_workload(state):
    save_hints("mine", {"precision.autocast": "bfloat16", "step.cuda_graph": True}, 12.5)
    assert hints_for("mine") == Hints({"precision.autocast": "bfloat16", "step.cuda_graph": True}, 12.5)
    assert hints_for("another") == Hints()


@pytest.mark.parametrize("text", ["", "{", '{"schema": 99, "workloads": {"mine": {"settings": {}}}}', "[1]"])
def test_a_file_that_cannot_be_read_gives_no_hints(state, text):
    (state / HINTS_FILE).write_text(text)
    assert hints_for("mine") == Hints()
    save_hints("mine", {"step.cuda_graph": True}, None)
    assert hints_for("mine").settings == {"step.cuda_graph": True}


def test_another_batch_device_or_version_is_another_workload():
    facts = gpu_facts()
    name = workload_name(TARGET, facts)
    others = [
        workload_name(replace(TARGET, target="mymodel:other"), facts),
        workload_name(TARGET, gpu_facts(batch_text="float32[64, 3, 96, 96]")),
        workload_name(TARGET, gpu_facts(device_name="Another")),
        workload_name(TARGET, gpu_facts(versions={"torch": "2.12.0"})),
    ]
    assert len({name, *others}) == 5
    assert workload_name(TARGET, gpu_facts()) == name


def test_what_was_found_before_is_part_of_the_first_stack():
    facts, found = gpu_facts(), {"optimizer.implementation": "for-loop", "compile.mode": "max-autotune-no-cudagraphs"}
    plans = [planned(facts, hints) for hints in ({}, found)]
    plain, hinted = (plan.usual_stack() for plan in plans)
    assert plain["optimizer.implementation"] == "fused"
    assert hinted["optimizer.implementation"] == "for-loop"
    modes = [plan.compiled(BASELINE).get("compile.mode") for plan in plans]
    assert modes == [None, "max-autotune-no-cudagraphs"]
    assert plans[0].candidates == plans[1].candidates
