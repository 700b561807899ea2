"""When a recipe is proposed, with which values, and in which order."""

import importlib

import pytest
from facts import CONV, LINEAR, adamw_facts, cpu_facts, gpu_facts, host, loader_facts, profile_facts, sgd_facts
from proposals import CATALOG, proposed, reason

from advisor.records import Hardware, Mode, Numerics


def test_a_captured_step_promises_the_same_numbers_in_inference_only():
    assert CATALOG["step_graph"].numerics_of(True, Mode.TRAIN) is Numerics.CLOSE
    assert CATALOG["step_graph"].numerics_of(True, Mode.INFER) is Numerics.EXACT


def test_tf32_needs_ampere_and_float32_products():
    assert proposed("tf32", gpu_facts()) == ["high"]
    assert "7.5 has no TensorFloat-32" in reason("tf32", gpu_facts(capability=(7, 5)))
    assert "no parameter is in float32" in reason("tf32", gpu_facts(parameter_dtypes=("bfloat16",)))
    assert "no linear" in reason("tf32", gpu_facts(families={"embedding": 1}))
    assert "autocast" in reason("tf32", gpu_facts(current={"precision.autocast": "bfloat16"}))


def test_channels_last_follows_the_convolutions():
    assert proposed("channels_last", cpu_facts()) == ["channels_last"]
    assert proposed("channels_last", gpu_facts(families={"conv3d": 2})) == ["channels_last_3d"]
    assert "no 2-D or 3-D convolution" in reason("channels_last", gpu_facts(families=LINEAR))
    assert "one format only" in reason("channels_last", gpu_facts(families={**CONV, "conv3d": 1}))


def test_compile_needs_a_compiler(monkeypatch):
    toolchain = importlib.import_module("advisor.machine.toolchain")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: f"/bin/{name}")
    assert proposed("compile", cpu_facts()) == ["default", "max-autotune-no-cudagraphs"]
    assert proposed("compile", gpu_facts()) == list(CATALOG["compile"].examples[1:])
    assert "too old for Triton" in reason("compile", gpu_facts(capability=(6, 1)))
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    assert "needs g++" in reason("compile", cpu_facts())
    assert "needs gcc or clang" in reason("compile", gpu_facts())
    monkeypatch.setenv("CXX", "my-compiler")
    monkeypatch.setenv("CC", "my-c")
    assert "$CXX names, my-compiler, is not found" in reason("compile", cpu_facts())
    assert "$CC names, my-c, is not found" in reason("compile", gpu_facts())


def test_torchscript_is_not_compiled():
    assert "the model is TorchScript" in reason("compile", cpu_facts(torchscript=True))
    assert "the model is TorchScript" in reason("compile_scope", gpu_facts(torchscript=True))


def test_one_graph_at_a_time():
    for mode in ("reduce-overhead", "max-autotune"):
        assert "CUDA graphs of its own" in CATALOG.conflict({"step.cuda_graph": True, "compile.mode": mode})
        assert CATALOG.conflict({"step.cuda_graph": False, "compile.mode": mode}) is None
    captured = {"step.cuda_graph": True, "compile.mode": "default", "precision.autocast": "bfloat16"}
    assert CATALOG.conflict(captured) is None


def test_a_step_with_a_gradient_scaler_is_captured_without_its_update():
    float16 = {"precision.autocast": "float16"}
    assert CATALOG["step_graph"].conflict(True, float16) is None
    assert proposed("step_graph", gpu_facts(current=float16)) == [True]
    assert proposed("step_graph", gpu_facts(mode=Mode.INFER, current=float16)) == [True]


def test_an_optimizer_that_counts_on_the_host_forbids_only_to_capture_a_step_of_ones_own():
    adagrad = sgd_facts(name="Adagrad")
    for optimizer in (sgd_facts(), adamw_facts(), adagrad, sgd_facts(name="Lion", builtin=False)):
        assert proposed("step_graph", gpu_facts(optimizer=optimizer)) == [True]
    told = reason("step_graph", gpu_facts(optimizer=adagrad, own_step=True))
    assert told.startswith("Adagrad counts its steps on the host")


def test_implementations_other_than_the_default_one():
    assert proposed("fused_optimizer", gpu_facts()) == ["fused", "for-loop"]
    assert proposed("fused_optimizer", cpu_facts()) == ["fused", "foreach"]
    rmsprop = sgd_facts(name="RMSprop", implementations=("for-loop", "foreach"))
    assert proposed("fused_optimizer", gpu_facts(optimizer=rmsprop)) == ["for-loop"]
    lbfgs = sgd_facts(name="LBFGS", implementations=("for-loop",))
    assert "LBFGS has neither" in reason("fused_optimizer", gpu_facts(optimizer=lbfgs))
    assert "no optimizer" in reason("fused_optimizer", gpu_facts(optimizer=None))


@pytest.mark.parametrize(
    ("recipe_id", "called"),
    [
        ("cudnn_benchmark", "conv1d"),
        ("channels_last", "conv2d"),
        ("channels_last", "conv3d"),
        ("tf32", "batched_product"),
    ],
)
def test_what_a_step_calls_without_a_module_counts_too(recipe_id, called):
    families = {"embedding": 1}
    assert "the step" in reason(recipe_id, gpu_facts(families=families, profile=profile_facts()))
    assert proposed(recipe_id, gpu_facts(families=families, profile=profile_facts(called=(called,))))


@pytest.mark.parametrize(("cores", "expected"), [(1, [1]), (2, [2, 1]), (6, [6, 4, 2, 1]), (8, [8, 4, 2, 1])])
def test_workers_are_tried_from_the_number_of_cores_down(cores, expected):
    assert (
        proposed("num_workers", cpu_facts(loader=loader_facts(), hardware=Hardware(host(usable_cores=cores))))
        == expected
    )
    assert CATALOG["num_workers"].ladder


@pytest.mark.parametrize(
    ("wait_ms", "expected"), [(90.0, [16, 8, 4, 2, 1]), (10.0, [8, 4, 2, 1]), (5.0, [4, 2, 1]), (1.5, [1])]
)
def test_no_more_workers_are_tried_than_a_tuned_step_could_use(wait_ms, expected):
    waits = profile_facts(step_ms=100.0, phases={"data wait": wait_ms, "forward": 100 - wait_ms})
    facts = cpu_facts(loader=loader_facts(), profile=waits)
    assert proposed("num_workers", facts) == expected


def test_workers_are_not_tried_where_they_cannot_help():
    waits_little = profile_facts(phases={"data wait": 0.3, "forward": 99.7})
    assert reason("num_workers", cpu_facts(loader=loader_facts(), profile=waits_little)) == (
        "data wait is 0.3 % of the step"
    )
    assert "does not come from a DataLoader" in reason("num_workers", cpu_facts())
    several = loader_facts(iterable_dataset=True, num_workers=2)
    assert "shard the dataset by get_worker_info()" in reason("num_workers", cpu_facts(loader=several))


@pytest.mark.parametrize(
    ("recipe_id", "present", "values"),
    [
        ("num_workers", 2, [4, 6, 0]),
        ("num_workers", 3, [4, 6, 0]),
        ("num_workers", 16, [6, 4, 2, 1, 0]),
        ("prefetch", 4, [8, 2]),
        ("grad_accumulation", 4, [8, 1]),
        ("grad_accumulation", 8, [4, 2, 1]),
    ],
)
def test_a_ladder_is_climbed_from_where_one_stands(recipe_id, present, values):
    loader = loader_facts(num_workers=present if recipe_id == "num_workers" else 2)
    six = Hardware(host(usable_cores=6))
    facts = cpu_facts(loader=loader, hardware=six, current={CATALOG[recipe_id].key: present})
    assert proposed(recipe_id, facts) == values


def test_threads_other_than_the_present_number():
    assert proposed("threads", cpu_facts(threads=16)) == [8]
    many = Hardware(host=host(physical_cores=8, usable_cores=16))
    busy = cpu_facts(threads=8, hardware=many, loader=loader_facts(num_workers=4))
    assert proposed("threads", busy) == [12, 16]
    alone = Hardware(host=host(physical_cores=1, usable_cores=1))
    assert "nothing else to try" in reason("threads", cpu_facts(threads=1, hardware=alone))


def beside(foreign_cores):
    """Facts of 16 threads on 16 cores of a machine with 32, of which other programs use this many."""
    return cpu_facts(threads=16, hardware=Hardware(host=host(foreign_cores=foreign_cores)))


@pytest.mark.parametrize(("foreign_cores", "threads"), [(17.0, 15), (20.3, 12), (26.0, 8), (31.0, 8)])
def test_as_many_threads_as_find_a_core_are_tried_first_beside_other_programs(foreign_cores, threads):
    recipe, crowded = CATALOG["threads"], beside(foreign_cores)
    assert [value for value in proposed("threads", crowded) if recipe.suits(crowded, value)] == [threads]
    assert recipe.expected_gain(crowded, threads) > recipe.expected_gain(crowded, threads + 1)
    assert f"Other programs used {foreign_cores:.1f} of 32 cores" in recipe.why(crowded, threads)


@pytest.mark.parametrize("foreign_cores", [0.0, 1.0, 16.4])
def test_where_all_threads_find_a_core_none_is_left_out(foreign_cores):
    recipe, quiet = CATALOG["threads"], beside(foreign_cores)
    assert proposed("threads", quiet) == [8]
    assert not recipe.suits(quiet, 8)
    assert recipe.expected_gain(quiet, 8) == recipe.gain
    assert "Other programs used" not in recipe.why(quiet, 8)


@pytest.mark.parametrize("threads", [2, 16])
@pytest.mark.parametrize(("foreign_cores", "suits"), [(0.4, False), (0.7, True), (1.9, True)])
def test_one_thread_on_two_cores_is_tried_first_beside_a_program_that_keeps_one_busy(threads, foreign_cores, suits):
    small = host(physical_cores=2, logical_cores=2, usable_cores=2, foreign_cores=foreign_cores)
    facts = cpu_facts(threads=threads, hardware=Hardware(host=small))
    assert proposed("threads", facts) == ([1] if threads == 2 else [1, 2])
    assert CATALOG["threads"].suits(facts, 1) is suits
    assert not CATALOG["threads"].suits(facts, 2)
