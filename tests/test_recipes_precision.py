from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType

import pytest
import torch
from advisor.recipes.float8 import _is_large
from facts import cpu_facts, gpu_facts, host, profile_facts
from proposals import proposed, reason
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import profile
from torch.utils.checkpoint import checkpoint

from advisor.export.python_file import python_source
from advisor.portable.plan import StepPlan
from advisor.recipe import Components
from advisor.recipe.catalog import load_catalog
from advisor.records import Hardware, Mode, Numerics
from advisor.records.matrix_units import amd_types, nvidia_types
from advisor.runtime.apply import apply_settings
from advisor.runtime.batches import copy_into, mover
from advisor.runtime.loop import Loop
from advisor.runtime.step import make_step
from advisor.trial.inspection import current_settings, inspect_loop

CATALOG = load_catalog()
CPU = torch.device("cpu")
ATTENTION = {"attention": 2, "linear": 4}
SDPA_CALL = profile_facts(called=("attention",))
LARGE = ((1024, 4096, 12), (4096, 1024, 12), (1024, 10, 1))
GLOBALS = ("deterministic_off", "flush_denormal", "reduced_reduction", "sdpa")


@pytest.fixture(autouse=True)
def _global_flags():
    yield
    for recipe_id in GLOBALS:
        CATALOG[recipe_id].apply(Components(None, None, None, StepPlan(Mode.TRAIN, "cpu")), CATALOG[recipe_id].default)


class Decoder(nn.Module):
    """Attention, normalization and a product: a transformer's block in small."""

    def __init__(self, *, checkpointed=False):
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 4)
        self.checkpointed = checkpointed

    def forward(self, inputs):
        attended = checkpoint(self.attend, inputs, use_reentrant=False) if self.checkpointed else self.attend(inputs)
        return self.head(self.norm(attended).mean(1))

    def attend(self, inputs):
        queries, keys, values = (
            part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(inputs).chunk(3, dim=-1)
        )
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values)
        return inputs + attended.transpose(1, 2).flatten(2)


def parts(mode=Mode.TRAIN, model=None):
    torch.manual_seed(0)
    model = (model or Decoder()).train(mode is Mode.TRAIN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01) if mode is Mode.TRAIN else None
    return Components(model, optimizer, None, StepPlan(mode, "cpu"), batch_size=8)


def batches(count=5):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 16, 32, generator=generator), torch.randint(4, (8,), generator=generator)) for _ in range(count)
    ]


def applied(settings, mode=Mode.TRAIN, model=None):
    components = parts(mode, model)
    apply_settings(CATALOG, components, settings)
    return make_step(components, nn.functional.cross_entropy if mode is Mode.TRAIN else None)


def exported(settings, mode=Mode.TRAIN, model=None):
    module = ModuleType("tuned")
    exec(compile(python_source(CATALOG, settings, mode), "tuned.py", "exec"), vars(module))
    components = parts(mode, model)
    prepared, optimizer, _ = module.prepare(components.model, components.optimizer)
    if mode is Mode.TRAIN:
        return module.train_step(prepared, optimizer, nn.functional.cross_entropy)
    return module.infer_step(prepared)


both_steps = pytest.mark.parametrize("step_of", [applied, exported], ids=["applied", "exported"])


def losses(step):
    return [step(batch).item() for batch in batches()]


def by_apply(recipe_id, value, components):
    CATALOG[recipe_id].apply(components, value)
    return components.model, components.optimizer


def by_code(recipe_id, value, components):
    inputs, targets = batches(1)[0]
    namespace = {
        "torch": torch,
        "model": components.model,
        "optimizer": components.optimizer,
        "device": CPU,
        "inputs": inputs,
        "targets": targets,
        "loss_fn": nn.functional.cross_entropy,
    }
    exec(compile(CATALOG[recipe_id].code(value), recipe_id, "exec"), namespace)
    return namespace["model"], namespace["optimizer"]


both_ways = pytest.mark.parametrize("effect", [by_apply, by_code], ids=["apply", "code"])


# --- half-precision weights -----------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("value", ["bfloat16", "float16", "float32"])
def test_the_weights_and_the_optimizers_state_take_the_type(effect, value):
    components = parts()
    parameters = list(components.model.parameters())
    components.model(batches(1)[0][0]).sum().backward()
    components.optimizer.step()
    components.optimizer.zero_grad()
    model, optimizer = effect("half_weights", value, components)
    dtype = getattr(torch, value)
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    state = optimizer.state[model.head.weight]
    assert (state["exp_avg"].dtype, state["step"].dtype) == (dtype, torch.float32)


@both_steps
@pytest.mark.parametrize("value", ["bfloat16", "float32"])
def test_a_step_with_half_weights_trains_near_the_float32_one(step_of, value):
    expected = losses(applied({}))
    step = step_of({"precision.weights": value})
    found = losses(step)
    assert found == (pytest.approx(expected, rel=0.03) if value == "bfloat16" else expected)
    assert (found == expected) is (value == "float32")


def test_both_ways_train_alike_to_the_bit():
    settings = {"precision.weights": "bfloat16", "attention.backend": "math"}
    assert losses(applied(settings)) == losses(exported(settings))


@both_steps
@pytest.mark.parametrize("value", ["bfloat16", "float16"])
def test_inference_with_half_weights_is_close(step_of, value):
    inputs = batches(1)[0][0]
    expected = applied({}, Mode.INFER)(inputs)
    output = step_of({"precision.weights": value, "infer.grad": "no_grad"}, Mode.INFER)(inputs)
    assert output.dtype is getattr(torch, value)
    distance = ((output.double() - expected) / expected.norm()).norm().item()
    assert 0 < distance < 4 * CATALOG["half_weights"].rounding(value)


def test_floating_point_targets_are_cast_too():
    components = parts(model=nn.Linear(3, 2))
    apply_settings(CATALOG, components, {"precision.weights": "bfloat16"})
    step = make_step(components, nn.functional.mse_loss)
    first, second = (step((torch.ones(4, 3), torch.zeros(4, 2))).item() for _ in range(2))
    assert second < first


def test_a_batch_takes_place_layout_and_type():
    move = mover(CPU, memory_format="channels_last", dtype="bfloat16")
    images, labels, mask = move((torch.ones(2, 3, 4, 4), torch.arange(2), torch.ones(2, dtype=torch.bool)))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert (images.dtype, labels.dtype, mask.dtype) == (torch.bfloat16, torch.int64, torch.bool)
    static = (torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int64))
    copy_into(static, (torch.tensor([1.5, 2.5]), torch.tensor([3, 4])))
    assert [tensor.tolist() for tensor in static] == [[1.5, 2.5], [3, 4]]


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_an_exported_file_moves_batches_as_the_trials_do(memory_format, tmp_path):
    settings = {"precision.weights": "bfloat16", "model.memory_format": memory_format, "data.pin_memory": True}
    source = python_source(CATALOG, settings, Mode.TRAIN)
    module = ModuleType("tuned")
    exec(compile(source, "tuned.py", "exec"), vars(module))
    model = nn.Linear(2, 2)
    step = module.train_step(model, torch.optim.SGD(model.parameters()))
    images, labels = step.to_device((torch.ones(2, 3, 4, 4), torch.arange(2)))
    assert images.is_contiguous(memory_format=torch.channels_last) is (memory_format == "channels_last")
    assert (images.dtype, labels.dtype) == (torch.bfloat16, torch.int64)


def test_complex_numbers_are_not_made_real():
    model = nn.Linear(2, 2)
    model.register_buffer("rotations", torch.ones(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match="rotations is complex, and converting the model to bfloat16 would make it"):
        CATALOG["half_weights"].apply(parts(model=model), "bfloat16")


def test_half_weights_need_float32_and_fast_units():
    assert proposed("half_weights", gpu_facts()) == ["bfloat16"]
    assert proposed("half_weights", gpu_facts(mode=Mode.INFER)) == ["bfloat16", "float16"]
    assert proposed("half_weights", gpu_facts(mode=Mode.INFER, capability=(7, 5))) == ["float16"]
    assert proposed("half_weights", cpu_facts()) == ["bfloat16"]
    assert "7.5 has no bfloat16 units" in reason("half_weights", gpu_facts(capability=(7, 5)))
    old = gpu_facts(mode=Mode.INFER, capability=(6, 1))
    assert "6.1 has no half-precision tensor cores" in reason("half_weights", old)
    plain = Hardware(host=host(cpu_features=("avx2",)))
    assert "no fast bfloat16 units" in reason("half_weights", cpu_facts(hardware=plain))
    mixed = gpu_facts(parameter_dtypes=("bfloat16", "float32"))
    assert "not all in float32 (they have bfloat16, float32)" in reason("half_weights", mixed)
    assert "there are none" in reason("half_weights", gpu_facts(parameter_dtypes=()))
    autocast = gpu_facts(current={"precision.autocast": "bfloat16"})
    assert "precision.autocast: bfloat16 casts the products" in reason("half_weights", autocast)


def test_half_weights_that_are_on_are_measured_off():
    facts = gpu_facts(mode=Mode.INFER, parameter_dtypes=("bfloat16",), current={"precision.weights": "bfloat16"})
    assert proposed("half_weights", facts) == ["float16", "float32"]
    off = CATALOG.propose(facts, only=["half_weights"]).candidates[-1]
    assert (off.value, off.already_on) == ("float32", True)


def test_half_weights_change_training_and_leave_autocast_nothing_to_cast():
    recipe = CATALOG["half_weights"]
    assert recipe.numerics_of("bfloat16", Mode.TRAIN) is Numerics.CHANGED
    assert recipe.numerics_of("bfloat16", Mode.INFER) is Numerics.CLOSE
    conflict = CATALOG.conflict({"precision.weights": "bfloat16", "precision.autocast": "float16"})
    assert "precision.autocast: float16 casts the products" in conflict
    assert CATALOG.conflict({"precision.weights": "bfloat16", "precision.autocast": "none"}) is None
    assert CATALOG.conflict({"precision.weights": "float32", "precision.autocast": "float16"}) is None


# --- reductions of half-precision products --------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("value", [True, False])
def test_both_types_reductions_are_switched(effect, value):
    switches = torch.backends.cuda.matmul
    switches.allow_bf16_reduced_precision_reduction = switches.allow_fp16_reduced_precision_reduction = not value
    effect("reduced_reduction", value, parts())
    assert switches.allow_bf16_reduced_precision_reduction is value
    assert switches.allow_fp16_reduced_precision_reduction is value


def test_reductions_matter_to_half_precision_products():
    assert proposed("reduced_reduction", gpu_facts(parameter_dtypes=("bfloat16",))) == [False]
    assert proposed("reduced_reduction", gpu_facts(current={"precision.bf16_reduction": False})) == [True]
    old = gpu_facts(capability=(6, 1))
    assert "no product runs in bfloat16 or float16" in reason("reduced_reduction", old)
    assert "no product runs in bfloat16" in reason("reduced_reduction", gpu_facts(parameter_dtypes=("float64",)))
    assert "no linear, attention or recurrent" in reason("reduced_reduction", gpu_facts(families={"conv2d": 3}))
    assert "needs a CUDA GPU" in reason("reduced_reduction", cpu_facts())


# --- an optional package --------------------------------------------------------------------------------------

OPTIONAL = {
    "float8": gpu_facts(linear_shapes=LARGE),
    "int8_weights": gpu_facts(mode=Mode.INFER, linear_shapes=LARGE),
}


@pytest.mark.parametrize("recipe_id", OPTIONAL)
def test_without_torchao_the_reason_says_how_to_get_it(recipe_id, monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("advisor.recipe.contract.version", missing)
    expected = "torchao is not installed; `pip install 'perf-advisor[torchao]'` adds it"
    assert reason(recipe_id, OPTIONAL[recipe_id]) == expected
    monkeypatch.setattr("advisor.recipe.contract.version", lambda name: "0.9.0+cu126")
    assert "torchao 0.9.0+cu126 is too old (0.14 or later is needed)" in reason(recipe_id, OPTIONAL[recipe_id])


def test_an_exported_file_names_the_package_that_it_needs():
    assert "Needs torch and torchao.\n" in python_source(CATALOG, {"precision.float8": "tensorwise"}, Mode.TRAIN)
    assert "Needs torch and nothing else.\n" in python_source(CATALOG, {"precision.float8": "none"}, Mode.TRAIN)


def test_float8_needs_its_units_and_large_layers(monkeypatch):
    monkeypatch.setattr("advisor.recipe.contract.version", lambda name: "0.14.1")
    assert proposed("float8", gpu_facts(linear_shapes=LARGE)) == ["tensorwise"]
    autocast = {"precision.autocast": "bfloat16"}
    assert proposed("float8", gpu_facts(linear_shapes=LARGE, current=autocast)) == ["tensorwise", "rowwise"]
    half = gpu_facts(mode=Mode.INFER, linear_shapes=LARGE, parameter_dtypes=("bfloat16",))
    assert proposed("float8", half) == ["tensorwise", "rowwise"]
    assert "8.0 has no float8 tensor cores" in reason("float8", gpu_facts(linear_shapes=LARGE, capability=(8, 0)))
    for shapes in ((), ((512, 512, 8),), ((4096, 50257, 1),)):
        assert "multiples of 16 and at least 1,048,576 weights" in reason("float8", gpu_facts(linear_shapes=shapes))


def test_integer_weights_need_linear_layers_and_inference(monkeypatch):
    monkeypatch.setattr("advisor.recipe.contract.version", lambda name: "0.18.0")
    infer = {"mode": Mode.INFER, "linear_shapes": LARGE}
    assert proposed("int8_weights", gpu_facts(**infer)) == ["int8wo", "int8dq"]
    assert proposed("int8_weights", cpu_facts(**infer)) == ["int8wo", "int8dq"]
    half = gpu_facts(**infer, parameter_dtypes=("bfloat16",))
    assert proposed("int8_weights", half) == ["int8wo", "int8dq", "int4wo"]
    assert "no linear layers" in reason("int8_weights", gpu_facts(mode=Mode.INFER))
    assert "applies to inference only" in reason("int8_weights", gpu_facts(linear_shapes=LARGE))


def test_what_quantized_weights_cannot_be_combined_with():
    settings = {"precision.quantize": "int8wo", "precision.float8": "tensorwise"}
    assert "both replace the weights" in CATALOG.conflict(settings)
    settings = {"precision.quantize": "int4wo", "precision.weights": "float16"}
    assert "must be bfloat16" in CATALOG.conflict(settings)
    settings["precision.weights"] = "bfloat16"
    assert CATALOG.conflict(settings) is None
    assert CATALOG.conflict({"precision.quantize": "int4wo"}) is None


def test_int4_weights_of_float32_layers_are_refused():
    with pytest.raises(ValueError, match="int4 weights need bfloat16 parameters: set"):
        CATALOG["int8_weights"].apply(parts(Mode.INFER), "int4wo")


def test_layers_take_their_type_before_they_are_quantized():
    order = [recipe.id for recipe, _ in CATALOG.in_order({recipe.key: recipe.default for recipe in CATALOG})]
    assert order.index("half_weights") < order.index("float8") < order.index("int8_weights") < order.index("compile")


class Wide(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 4))


@both_ways
def test_float8_training_replaces_large_layers_and_keeps_their_parameters(effect):
    layers = pytest.importorskip("torchao.float8.float8_linear")
    components = parts(model=Wide())
    parameters = list(components.model.parameters())
    inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    expected = components.model(inputs).detach()
    model, optimizer = effect("float8", "tensorwise", components)
    assert [isinstance(model[place], layers.Float8Linear) for place in (0, 2, 4)] == [False, True, False]
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    output = model(inputs)
    distance = ((output - expected).norm() / expected.norm()).item()
    assert 0 < distance < 2 * CATALOG["float8"].rounding("tensorwise")
    output.sum().backward()
    before = model[2].weight.detach().clone()
    optimizer.step()
    assert not torch.equal(model[2].weight, before)


@both_ways
@pytest.mark.parametrize("value", ["int8wo", "int8dq"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_integer_weights_compute_nearly_the_same(effect, value, dtype):
    pytest.importorskip("torchao")
    components = parts(Mode.INFER, model=Wide().to(getattr(torch, dtype)))
    inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(1)).to(getattr(torch, dtype))
    expected = components.model(inputs).double()
    model, _ = effect("int8_weights", value, components)
    assert type(model[2].weight.data) is not torch.Tensor
    assert model[2].weight.shape == (1024, 1024)
    for grad in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with grad():
            distance = ((model(inputs).double() - expected).norm() / expected.norm()).item()
        assert 0 < distance < 8 * CATALOG["int8_weights"].rounding(value)


def test_int4_weights_are_asked_for_in_the_packing_that_pytorch_computes_with():
    quantization = pytest.importorskip("torchao.quantization")
    namespace = {"model": nn.Identity()}
    exec(CATALOG["int8_weights"].code("int4wo"), namespace)
    config = quantization.Int4WeightOnlyConfig(group_size=128, int4_packing_format="tile_packed_to_4d")
    assert config.group_size == 128
    assert 'group_size=128, int4_packing_format="tile_packed_to_4d"' in CATALOG["int8_weights"].code("int4wo")


# --- the attention kernel -------------------------------------------------------------------------------------


def attention_calls(step, batch):
    """How often a step computes attention with flash, and how often with products and a softmax."""
    with profile() as recorded:
        step(batch)
    counts = {row.key: row.count for row in recorded.key_averages()}
    flash = counts.get("aten::_scaled_dot_product_flash_attention_for_cpu", 0)
    return flash, counts.get("aten::_softmax", 0) + counts.get("aten::_safe_softmax", 0)


@both_steps
@pytest.mark.parametrize("mode", list(Mode))
def test_only_the_chosen_kernel_runs(step_of, mode):
    batch = batches(1)[0] if mode is Mode.TRAIN else batches(1)[0][0]
    flash_calls, softmaxes = attention_calls(step_of({"attention.backend": "flash"}, mode), batch)
    assert (flash_calls, softmaxes) == (1, 0)
    flash_calls, softmaxes = attention_calls(step_of({"attention.backend": "math"}, mode), batch)
    assert flash_calls == 0
    assert softmaxes


@both_steps
def test_what_is_computed_again_in_the_backward_pass_uses_the_same_kernel(step_of):
    step = step_of({"attention.backend": "math"}, model=Decoder(checkpointed=True))
    flash_calls, _ = attention_calls(step, batches(1)[0])
    assert flash_calls == 0
    step = step_of({}, model=Decoder(checkpointed=True))
    flash_calls, softmaxes = attention_calls(step, batches(1)[0])
    assert (flash_calls, softmaxes) == (2, 0)


@both_steps
def test_the_kernels_agree_and_leave_nothing_behind(step_of):
    expected = losses(step_of({}))
    assert losses(step_of({"attention.backend": "math"})) == pytest.approx(expected, rel=1e-5)
    assert torch.backends.cuda.flash_sdp_enabled()


@pytest.mark.parametrize("value", ["cudnn", "efficient"])
def test_a_kernel_that_cannot_run_says_so(value):
    with pytest.raises(RuntimeError, match=f"the {value} attention kernel cannot run this model's attention"):
        applied({"attention.backend": value})(batches(1)[0])
    assert torch.backends.cuda.math_sdp_enabled()


def test_other_errors_in_the_model_stay_what_they_are():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        applied({"attention.backend": "math"})((torch.ones(2, 16, 5), torch.zeros(2, dtype=torch.int64)))


@both_ways
def test_auto_permits_all_kernels_again(effect):
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    effect("sdpa", "auto", parts())
    assert torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_the_code_of_a_kernel_runs_the_model_with_it():
    model = Decoder()
    with profile() as recorded:
        by_code("sdpa", "math", parts(model=model))
    assert not any("flash" in row.key for row in recorded.key_averages())


def test_kernels_by_device_and_type():
    assert proposed("sdpa", cpu_facts(families=ATTENTION)) == ["flash", "math"]
    assert proposed("sdpa", gpu_facts(profile=SDPA_CALL)) == ["efficient", "math"]
    in_half = ["flash", "cudnn", "efficient", "math"]
    assert proposed("sdpa", gpu_facts(families=ATTENTION, parameter_dtypes=("bfloat16",))) == in_half
    autocast = gpu_facts(families=ATTENTION, current={"precision.autocast": "float16"})
    assert proposed("sdpa", autocast) == in_half
    older = gpu_facts(families=ATTENTION, parameter_dtypes=("float16",), capability=(7, 5))
    assert proposed("sdpa", older) == ["efficient", "math"]
    assert "no scaled_dot_product_attention" in reason("sdpa", gpu_facts(profile=profile_facts()))
    chosen = gpu_facts(families=ATTENTION, current={"attention.backend": "math"})
    assert proposed("sdpa", chosen) == ["efficient", "auto"]


COMPILED = """
import sys
import torch
sys.path.insert(0, {tests!r})
from torch._functorch import config
from advisor.records import Mode
from test_recipes_precision import applied, attention_calls, batches, exported

inputs = batches(1)[0][0]
for step_of in {steps_of}:
    config.enable_autograd_cache = True
    torch._dynamo.reset()
    settings = {{"compile.mode": "default", "infer.grad": "no_grad", "attention.backend": {backend!r}}}
    step = step_of(settings, Mode.INFER)
    step(inputs)
    print(attention_calls(step, inputs)[0])
"""


@pytest.mark.compile
def test_a_compiled_step_is_not_served_another_kernel_from_the_cache(tmp_path):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    flash_calls = []
    for backend, steps_of in (("auto", "(applied,)"), ("math", "(applied, exported)")):
        script = COMPILED.format(tests=str(Path(__file__).parent), steps_of=steps_of, backend=backend)
        command = [sys.executable, "-c", script]
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=280)
        flash_calls += run.stdout.split()
    assert flash_calls == ["1", "0", "0"]


# --- determinism ----------------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("value", [True, False])
def test_both_switches_of_determinism(effect, value):
    torch.use_deterministic_algorithms(not value)
    effect("deterministic_off", value, parts())
    assert torch.are_deterministic_algorithms_enabled() is value
    assert torch.backends.cudnn.deterministic is value


def test_determinism_is_measured_off_where_it_is_on():
    assert reason("deterministic_off", gpu_facts()) == "determinism is off already"
    facts = gpu_facts(current={"backends.deterministic": True})
    (candidate,) = CATALOG.propose(facts, only=["deterministic_off"]).candidates
    assert (candidate.value, candidate.already_on) == (False, True)
    assert CATALOG.why("deterministic_off", facts, False).startswith("Your program asks for deterministic algorithms")


# --- denormal numbers -----------------------------------------------------------------------------------------

DENORMALS = """
import sys
import torch
sys.path.insert(0, {tests!r})
from test_recipes_precision import by_apply, by_code, parts
from advisor.trial.inspection import _flushes_denormals

torch.set_num_threads(4)
numbers = torch.full((4_000_000,), 1e-30)  # started OpenMP's threads


def denormal_results():
    leaf = numbers.clone().requires_grad_()
    product = leaf * 1e-10
    product.backward(numbers)
    return sum(int((found.view(torch.int32) != 0).sum()) for found in (product.detach(), leaf.grad))


print(denormal_results(), _flushes_denormals())
for value in (True, False):
    {effect}("flush_denormal", value, parts())
    print(denormal_results(), _flushes_denormals())
"""


@pytest.mark.process
@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this CPU cannot flush denormal numbers")
@pytest.mark.parametrize("effect", ["by_apply", "by_code"])
def test_denormals_are_flushed_in_all_threads(effect):
    script = DENORMALS.format(tests=str(Path(__file__).parent), effect=effect)
    run = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True, timeout=200)
    assert run.stdout.splitlines() == ["8000000 False", "0 True", "8000000 False"]


@both_ways
def test_a_cpu_without_the_mode_is_told(effect, monkeypatch):
    monkeypatch.setattr(torch, "set_flush_denormal", lambda mode: False)
    with pytest.raises(RuntimeError, match="this CPU cannot flush denormal numbers"):
        effect("flush_denormal", True, parts())
    effect("flush_denormal", False, parts())


def test_denormals_are_tried_on_the_cpu():
    assert proposed("flush_denormal", cpu_facts()) == [True]
    assert proposed("flush_denormal", cpu_facts(current={"cpu.flush_denormal": True})) == [False]
    assert "applies to the CPU only" in reason("flush_denormal", gpu_facts())


# --- what the user has on already -----------------------------------------------------------------------------


def loop_of(model):
    return Loop(model, batches(1)[0], None, None, Mode.INFER, 8)


def test_present_settings_at_pytorchs_defaults():
    found = current_settings(loop_of(Decoder()))
    for recipe_id in ("half_weights", "reduced_reduction", "sdpa", "deterministic_off", "flush_denormal"):
        recipe = CATALOG[recipe_id]
        assert found[recipe.key] == recipe.default
        assert recipe.accepts(found[recipe.key])


@pytest.mark.parametrize("value", ["bfloat16", "float16"])
def test_present_weights_are_read_off_the_parameters(value):
    assert current_settings(loop_of(Decoder().to(getattr(torch, value))))["precision.weights"] == value
    mixed = Decoder()
    mixed.head.to(getattr(torch, value))
    assert current_settings(loop_of(mixed))["precision.weights"] == "float32"


def test_present_switches_are_read_off_the_process():
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cudnn.deterministic = True
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        found = current_settings(loop_of(Decoder()))
    assert found["precision.bf16_reduction"] is False
    assert found["backends.deterministic"] is True
    assert found["attention.backend"] == "efficient"
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        assert current_settings(loop_of(Decoder()))["attention.backend"] == "auto"


def test_sizes_of_linear_layers_are_facts():
    model = nn.ModuleList([nn.Linear(8, 8), Decoder(), Decoder()])
    facts = inspect_loop(loop_of(model), CPU, batches(1)[0])
    assert facts.linear_shapes == ((32, 96, 2), (32, 4, 2), (8, 8, 1))


@pytest.mark.parametrize(
    ("recipe_id", "bad"),
    [
        ("half_weights", "bf16"),
        ("half_weights", True),
        ("reduced_reduction", "true"),
        ("float8", "e4m3"),
        ("int8_weights", "int8"),
        ("sdpa", "flash_attention"),
        ("deterministic_off", 1),
        ("flush_denormal", "on"),
    ],
)
def test_values_that_a_settings_file_may_not_hold(recipe_id, bad):
    assert not CATALOG[recipe_id].accepts(bad)


def test_a_layer_that_others_changed_is_no_candidate_for_float8():
    class Adapted(nn.Linear):
        pass

    plain, hooked, patched = (nn.Linear(1024, 1024) for _ in range(3))
    hooked.register_forward_hook(lambda *_: None)
    patched.forward = plain.forward
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(1024, 1024))
    namespace = {"torch": torch}
    exec(CATALOG["float8"].code("tensorwise").partition("if optimizer")[0], namespace)
    for fits in (_is_large, namespace["is_large"]):
        layers = (plain, hooked, patched, normed, Adapted(1024, 1024), nn.Linear(8, 8))
        assert [fits(layer, "") for layer in layers] == [True, False, False, False, False, False]


@pytest.mark.parametrize(
    ("types", "of_autocast"), [(("float16", "bfloat16"), ["bfloat16", "float16"]), (("float16",), ["float16"])]
)
def test_a_gpu_without_a_compute_capability_is_asked_for_its_types(types, of_autocast):
    """AMD's numbers in the same place mean something else."""
    facts = gpu_facts(capability=None, matrix_types=types, families={"linear": 2}, linear_shapes=((4096, 4096, 2),))
    assert proposed("autocast", facts) == of_autocast
    assert reason("float8", facts) == "the NVIDIA H200 has no float8 tensor cores"


def test_the_types_of_gpus_follow_from_what_tells_them():
    assert nvidia_types((7, 5)) == ("float16",)
    assert nvidia_types((8, 6)) == ("float16", "bfloat16", "tf32")
    assert nvidia_types((9, 0)) == ("float16", "bfloat16", "tf32", "float8")
    assert nvidia_types(None) == ()
    assert "float8" in amd_types("gfx942:sramecc+:xnack-")
    assert amd_types("gfx90a") == ("float16", "bfloat16")
    assert amd_types("gfx803") == ()
