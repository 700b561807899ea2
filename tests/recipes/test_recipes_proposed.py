"""Proposals of recipes for a workload, or the reasons for none; their texts and conflicts."""

from dataclasses import replace

import pytest
from facts import GIB, LINEAR, adamw_facts, cpu_facts, gpu_facts, host, loader_facts, profile_facts, sgd_facts
from proposals import CATALOG, proposed, reason

from advisor.records import Hardware, Mode, Place

INFER = {"mode": Mode.INFER}
EMBEDDING = {"families": {"embedding": 1}}
CALLS_NOTHING = profile_facts()
BF16, FLOAT16 = {"precision.autocast": "bfloat16"}, {"precision.autocast": "float16"}
BLOCKS = {"repeated_blocks": (("GPT2Block", 12),)}
CHEAP_LOSS = profile_facts(phases={"forward": 99.99, "loss": 0.01})
HEAVY = profile_facts(flops_per_step=10**14)
LARGE_STATE = {"optimizer": adamw_facts(state_bytes=30 * GIB), "parameter_bytes": 15 * GIB}
VERY_LARGE_BATCH = {"batch_size": 8192}
PADDABLE = {"paddable_outputs": ((8, 1, 50257), (64, 1, 50257))}
SIX_CORES = Hardware(host(usable_cores=6))
# The Trainer of a script gets only what its arguments can say.
ARGUMENTS = {"trainer": "transformers", "places": (Place("arguments", "train.py", 3, 0, 3, 9),)}


def loop_places(problem=""):
    """The places of a script's loop whose step has this problem."""
    return tuple(Place(kind, "train.py", 1, 0, 9, 0, problem=problem) for kind in ("loop", "forward", "step"))


def rmsprop(**changes):
    return sgd_facts(name="RMSprop", **changes)


def with_peaks(allocated, reserved=None, **workload):
    return replace(gpu_facts(**workload), peak_allocated_bytes=allocated, peak_reserved_bytes=reserved)


def with_loader(make=gpu_facts, **loader):
    return make(loader=loader_facts(**loader))


def waiting(wait_ms, make=gpu_facts, **loader):
    """A step of 100 ms that waits so long for its loader."""
    phases = {"data wait": wait_ms, "forward": 100 - wait_ms}
    return make(loader=loader_facts(**loader), profile=profile_facts(step_ms=100.0, phases=phases))


def present(recipe_id, value, workers=2):
    """Facts of a machine with six cores, where the user already has a value of a recipe."""
    loader = loader_facts(num_workers=workers)
    return cpu_facts(loader=loader, hardware=SIX_CORES, current={CATALOG[recipe_id].key: value})


# A recipe, facts, and the values that it proposes for them, or words of its reason for none.
PROPOSED = [
    ("autocast", gpu_facts(own_step=True), ["bfloat16"]),  # precision
    ("autocast", gpu_facts(own_step=True, casts_inside="float16"), "your step has autocast on inside, for float16"),
    ("tf32", gpu_facts(), ["high", "medium"]),
    ("tf32", cpu_facts(), ["medium"]),
    ("tf32", cpu_facts(hardware=Hardware(host=host(cpu_features=("avx2", "avx512f", "avx512_bf16")))), "no AMX units"),
    ("tf32", gpu_facts(**EMBEDDING, profile=profile_facts(called=("batched_product",))), ["high", "medium"]),
    ("tf32", gpu_facts(current=BF16), "autocast"),
    ("half_weights", gpu_facts(), ["bfloat16"]),
    ("half_weights", gpu_facts(**INFER), ["bfloat16", "float16"]),
    ("half_weights", gpu_facts(**INFER, capability=(7, 5)), ["float16"]),
    ("half_weights", cpu_facts(), ["bfloat16"]),
    ("half_weights", gpu_facts(**INFER, capability=(6, 1)), "6.1 has no half-precision tensor cores"),
    ("half_weights", gpu_facts(parameter_dtypes=("bfloat16", "float32")), "(they have bfloat16, float32)"),
    ("channels_last", cpu_facts(), ["channels_last"]),  # layout and structure
    ("channels_last", gpu_facts(families={"conv3d": 2}), ["channels_last_3d"]),
    ("channels_last", gpu_facts(**EMBEDDING, profile=profile_facts(called=("conv2d",))), ["channels_last"]),
    ("cudnn_benchmark", gpu_facts(**EMBEDDING, profile=CALLS_NOTHING), "the step"),
    ("cudnn_benchmark", gpu_facts(**EMBEDDING, profile=profile_facts(called=("conv1d",))), [True]),
    ("conv_bias", cpu_facts(biased_conv_norm_pairs=2), [False]),
    ("fold_norm", gpu_facts(**INFER, conv_norm_pairs=1), [True]),
    ("pad_dims", gpu_facts(**PADDABLE), [8, 64]),
    ("pad_dims", gpu_facts(), "no linear layer"),
    ("checkpointing", cpu_facts(**BLOCKS), ["blocks"]),
    ("checkpointing", cpu_facts(**BLOCKS, current={"compile.mode": "default"}), ["blocks", "budget-0.5"]),
    ("checkpointing", cpu_facts(**BLOCKS, current={"memory.activation_checkpointing": "blocks"}), ["none"]),
    ("step_graph", gpu_facts(), [True]),  # capturing, and compiling where there is a compiler
    ("step_graph", gpu_facts(**INFER, current=FLOAT16), [True]),
    ("step_graph", gpu_facts(optimizer=sgd_facts(name="Adagrad")), [True]),
    ("step_graph", gpu_facts(optimizer=sgd_facts(name="Adagrad"), own_step=True), "Adagrad counts its steps"),
    ("step_graph", gpu_facts(**ARGUMENTS), "the Trainer runs the steps"),
    ("step_graph", gpu_facts(trainer="transformers"), [True]),
    ("step_graph", gpu_facts(places=loop_places()), [True]),
    ("step_graph", gpu_facts(places=loop_places("line 3 branches on the host")), "line 3 branches on the host; tuning"),
    ("step_graph", gpu_facts(places=loop_places()[:2]), "the step was not seen"),
    ("step_graph", gpu_facts(places=loop_places() + loop_places()[1:2]), "several forward passes"),
    ("attention_mask", gpu_facts(**ARGUMENTS, empty_masks=1), "data_collator"),
    ("compile_scope", gpu_facts(**ARGUMENTS), "compiles the whole model"),
    ("compile", gpu_facts(**ARGUMENTS), list(CATALOG["compile"].values[1:])),
    ("compile", cpu_facts(), ["default", "max-autotune-no-cudagraphs"]),
    ("compile", gpu_facts(), list(CATALOG["compile"].values[1:])),
    ("compile", cpu_facts(torchscript=True), "the model is TorchScript"),
    ("compile_scope", gpu_facts(**BLOCKS, block_shapes=4), ["with_loss", "regional", "pointwise"]),
    ("compile_scope", cpu_facts(**BLOCKS, block_shapes=5), ["with_loss", "pointwise"]),
    ("compile_scope", cpu_facts(**BLOCKS, block_shapes=1, profile=CHEAP_LOSS), ["regional", "pointwise"]),
    ("compile_scope", gpu_facts(profile=CHEAP_LOSS), ["pointwise"]),
    ("compile_scope", gpu_facts(**INFER), ["pointwise"]),
    ("cpu_freeze", cpu_facts(**INFER), [True]),
    ("cpu_freeze", cpu_facts(**INFER, **EMBEDDING), "no convolution or linear layer"),
    ("fused_optimizer", gpu_facts(), ["fused", "for-loop"]),  # the optimizer
    ("fused_optimizer", cpu_facts(), ["fused", "foreach"]),
    ("fused_optimizer", gpu_facts(optimizer=rmsprop(implementations=("for-loop", "foreach"))), ["for-loop"]),
    ("fused_optimizer", gpu_facts(optimizer=sgd_facts(name="LBFGS", implementations=("for-loop",))), "LBFGS has n"),
    ("grad_accumulation", present("grad_accumulation", 4), [8, 1]),
    ("grad_accumulation", present("grad_accumulation", 8), [4, 2, 1]),
    ("large_batch_optimizer", gpu_facts(), "yours has 32"),
    ("large_batch_optimizer", gpu_facts(**VERY_LARGE_BATCH, optimizer=rmsprop()), "not RMSprop"),
    ("large_batch_optimizer", gpu_facts(**VERY_LARGE_BATCH, optimizer=adamw_facts(made_steps=True)), "has made steps"),
    ("optimizer_memory", gpu_facts(**LARGE_STATE), ["adafactor"]),
    ("optimizer_memory", with_peaks(300 * GIB, **LARGE_STATE), "state is 10 % of the memory"),
    ("optimizer_memory", gpu_facts(optimizer=adamw_facts(name="Adam + Adam")), "single Adam or AdamW"),
    ("batch_size", gpu_facts(), [32 * 2**doubling for doubling in range(1, 9)]),  # the batch
    ("batch_size", with_loader(length=5), [64, 128]),
    ("batch_size", with_loader(length=1), "smaller than two batches"),
    ("batch_size", gpu_facts(profile=HEAVY, device_memory_bytes=400 * 10**9), [64, 128]),
    ("batch_size", gpu_facts(profile=HEAVY, device_memory_bytes=10**11), "not to fit"),
    ("batch_size", cpu_facts(resizing_problem="its samples are packed"), "samples are packed; give a callable"),
    ("batch_size", with_loader(cpu_facts, custom_batch_sampler=True, batch_size=None), "batch sampler of its own"),
    ("batch_size", with_loader(cpu_facts, batch_size=None), "whole batches"),
    ("num_workers", cpu_facts(), "does not come from a DataLoader"),  # the input
    ("num_workers", cpu_facts(loader=loader_facts(), hardware=Hardware(host(usable_cores=1))), [1]),
    ("num_workers", cpu_facts(loader=loader_facts(), hardware=SIX_CORES), [6, 4, 2, 1]),
    ("num_workers", waiting(90.0, cpu_facts), [16, 8, 4, 2, 1]),
    ("num_workers", waiting(10.0, cpu_facts), [8, 4, 2, 1]),
    ("num_workers", waiting(1.5, cpu_facts), [1]),
    ("num_workers", waiting(90.0, iterable_dataset=True), [1]),
    ("num_workers", with_loader(cpu_facts, iterable_dataset=True, num_workers=1), "shards them"),
    ("num_workers", present("num_workers", 2), [4, 6, 0]),
    ("num_workers", present("num_workers", 3, workers=3), [4, 6, 0]),
    ("num_workers", present("num_workers", 16, workers=16), [6, 4, 2, 1, 0]),
    ("prefetch", present("prefetch", 4), [8, 2]),
    ("prefetch", with_loader(cpu_facts, num_workers=4), [4, 8]),
    ("persistent_workers", with_loader(cpu_facts, num_workers=4, length=20), [True]),
    ("gpu_prefetch", gpu_facts(loader=loader_facts(), profile=profile_facts()), [True]),
    ("non_blocking", with_loader(pin_memory=True), [True]),
    ("non_blocking", with_loader(), "pin_memory tries both"),
    *(
        (recipe_id, with_loader(num_workers=2, copy_problem="it reads from an iterator"), "it reads from an iterator")
        for recipe_id in ("num_workers", "persistent_workers", "prefetch", "pin_memory", "batch_size")
    ),
    ("loss_sync", gpu_facts(), ["every_step", "accumulated"]),  # habits
    ("empty_cache", with_loader(), ["every_step", "every_step_with_del"]),
    ("debug_off", gpu_facts(), ["anomaly", "profiler", "nvtx"]),
    ("debug_off", cpu_facts(**INFER), ["anomaly", "profiler"]),
    ("debug_off", cpu_facts(**INFER, current={"infer.grad": "no_grad"}), ["profiler"]),
    ("allocator", gpu_facts(), "not known"),  # the machine
    ("allocator", with_peaks(4 * GIB, 8 * GIB), ["expandable_segments"]),
    ("allocator", with_peaks(8 * GIB, 8 * GIB), "no fragmentation"),
    ("threads", cpu_facts(threads=16), [8]),
    ("threads", cpu_facts(threads=1, hardware=Hardware(host(physical_cores=1, usable_cores=1))), "nothing else to try"),
]


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize(("recipe_id", "facts", "expected"), PROPOSED)
def test_what_is_proposed_or_why_nothing_is(recipe_id, facts, expected):
    if isinstance(expected, list):
        values = proposed(recipe_id, facts)
        assert values[:1] == expected if recipe_id == "optimizer_memory" else values == expected
    else:
        assert expected in reason(recipe_id, facts)


@pytest.mark.usefixtures("compilers")
def test_compiling_needs_a_compiler(monkeypatch):
    monkeypatch.setattr("advisor.machine.toolchain.shutil.which", lambda name: None)
    assert "needs g++" in reason("compile", cpu_facts())
    assert "needs g++" in reason("cpu_freeze", cpu_facts(**INFER))
    found = gpu_facts(**BLOCKS, varying_shapes=True, families=LINEAR)
    for recipe_id in ("compile", "compile_scope"):
        assert "needs gcc or clang" in reason(recipe_id, found)
    monkeypatch.setenv("CXX", "my-compiler")
    monkeypatch.setenv("CC", "my-c")
    assert "$CXX names, my-compiler, is not found" in reason("compile", cpu_facts())
    assert "$CC names, my-c, is not found" in reason("compile", gpu_facts())


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


GRAPH, FUSED = {"step.cuda_graph": True}, {"optimizer.implementation": "fused"}
FOLDED, FROZEN = {"model.fold_batch_norm": True}, {"compile.freezing": True}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({**GRAPH, "compile.mode": "reduce-overhead"}, "its own CUDA graphs"),
        ({**GRAPH, "debug.switches": "anomaly"}, "no graph can capture"),
        ({**GRAPH, "step.accumulate": 2}, "step.accumulate"),
        ({"compile.mode": "none", "compile.scope": "regional"}, "compile.mode is none"),
        ({"compile.mode": "max-autotune", "compile.scope": "pointwise"}, "compiles in the mode default"),
        ({"compile.mode": "none", "memory.activation_checkpointing": "budget-0.5"}, "compile.mode is none"),
        ({**FROZEN, "compile.scope": "regional"}, "the code of each block"),
        ({"optimizer.state": "adafactor", **FUSED}, "optimizer.state replaces"),
        ({"optimizer.class": "lamb", **FUSED}, "optimizer.class replaces"),
        ({"precision.weights": "bfloat16", **FLOAT16}, "precision.autocast casts the products to half"),
        ({"precision.quantize": "int8wo", "model.pad_to_multiple": 8}, "take no padding"),
        ({**FOLDED, "model.conv_bias_before_norm": False}, "a bias again"),
        ({"data.prefetch_factor": 4, "data.num_workers": 0}, "about workers"),
    ],
)
def test_what_does_not_go_together_says_why(settings, words):
    assert words in CATALOG.conflict(settings)


@pytest.mark.parametrize(
    "settings",
    [
        {**GRAPH, "compile.mode": "default", **BF16},
        {**GRAPH, **FLOAT16},
        {**GRAPH, "debug.switches": "profiler"},
        {**GRAPH, "step.accumulate": 1},
        {"step.cuda_graph": False, "compile.mode": "max-autotune", "debug.switches": "anomaly"},
        {"step.accumulate": 2, "compile.mode": "default"},
        {**FROZEN, "infer.grad": "inference_mode", "compile.mode": "default"},
        {"optimizer.state": "adafactor", "optimizer.implementation": "default", "step.cuda_graph": False},
        {"memory.activation_checkpointing": "budget-0.5", "compile.mode": "default"},
        {"precision.weights": "bfloat16", "precision.autocast": "none"},
        {"precision.weights": "float32", **FLOAT16},
        {"precision.weights": "bfloat16", "precision.quantize": "int8wo"},
        {"data.prefetch_factor": 4, "data.num_workers": 2},
    ],
)
def test_what_goes_together(settings):
    assert CATALOG.conflict(settings) is None
