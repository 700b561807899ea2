"""Batch size

What it does
------------
Tries larger batches, doubling from the present one until the throughput stops rising or the memory is full, and
compares everything in samples per second. The size to take is the knee: the smallest one within 3 % of the best
throughput. A tenth of the device's memory is kept free. The value 0 leaves the batch size as it was built.

Why it helps
------------
The costs that do not depend on the batch (launches, the optimizer, reading the weights) are shared by more
samples, and larger products fill the device better.

When it does not
----------------
Once the device is full, a step takes twice as long for twice the batch, and only memory and latency grow. A step that
waits for its input waits for twice the input. In inference, a larger batch makes every request wait longer. In training
it is another experiment, to be tuned again: multiply the learning rate by the factor of the batch size for SGD, by its
square root for Adam and its kin, reach it by a warm-up over the first epochs, and tune the weight decay again. Very
large batches need an optimizer made for them (LARS, LAMB), and can end at a lower accuracy all the same.

Numerics
--------
changed in training: there are fewer updates, each from more samples, and batch norm sees other statistics.
close in inference, where each sample is computed on its own, but in products of other sizes, which may sum in
another order.

References
----------
Goyal et al., Accurate, Large Minibatch SGD, 2017. Malladi et al., On the SDEs and Scaling Rules for Adaptive Gradient
Algorithms, 2022. McCandlish et al., An Empirical Model of Large-Batch Training, 2018. NVIDIA ECCV 2020 tuning guide,
increase the batch size. Hugging Face, Efficient training on a single GPU, batch size choice.
"""

import math
from collections.abc import Mapping
from typing import Any

from advisor.recipe import Components, Recipe, Stage, WholeNumbers, is_host_bound
from advisor.records import Bottleneck, Facts, LoaderFacts, Mode, Numerics, Proposal, Skip, Value

_FACTORS = tuple(2**exponent for exponent in range(1, 9))
_USABLE_MEMORY = 0.9
# Largest expected speed-up, a factor; measured on a small network from 32 to 2,048 samples (tests/gpu/RESULTS.md).
_MOST_GAINED = 4.8
# A training step keeps about 12 bytes per output of a layer, and an output takes 500 to 2,000 operations in common
# models. Few bytes per operation make a low estimate: it leaves out only what cannot fit.
_ACTIVATION_BYTES_PER_FLOP = 1 / 500
_BACKWARD_FACTOR = 3  # forward and backward together, in forwards
# Their update does not grow with the gradient, so the square-root rule is the usual one.
_ADAPTIVE = ("Adam", "Adagrad", "Adafactor", "Adadelta", "RMSprop", "Lion", "LAMB", "Lamb")


class BatchSize(Recipe):
    key = "data.batch_size"
    default = 0
    values = WholeNumbers(0, such_as=(0, 8))
    attacks = frozenset({Bottleneck.LAUNCH, Bottleneck.COMPUTE, Bottleneck.MEMORY})
    stage = Stage.DATA
    ladder = True

    def candidates(self, facts: Facts) -> Proposal:
        workload = facts.workload
        present = workload.batch_size
        fixed = _cannot_be_resized(facts)
        if fixed or present is None:
            return fixed or Skip("the batch size cannot be told from the batch")
        sizes = [present * factor for factor in _FACTORS]
        filled = [size for size in sizes if size <= _samples(workload.loader)]
        if not filled:
            return Skip(f"the dataset is smaller than two batches of {present}")
        fitting = [size for size in filled if _estimated_bytes(facts, size) < _memory(facts)]
        return list(fitting) or Skip(f"a batch of {filled[0]} is estimated not to fit in the device's memory")

    def gain_for(self, facts: Facts, value: Value) -> float:
        # tests/gpu/RESULTS.md: on a host-bound GPU 1.9x in samples per second for twice the batch, 4.8x for 64 times;
        # 1.34x at most on a CPU. A busy device has little left to gain.
        present = facts.workload.batch_size
        if not present or int(value) <= present:
            return 1.0
        factor = int(value) / present
        share = facts.profile.device_busy_share if facts.profile else None
        if not facts.on_cuda:
            return 1.05
        if share:
            return max(1.02, min(factor, 1 / share, _MOST_GAINED))
        return min(1.0 + (0.5 if is_host_bound(facts) else 0.05) * math.log2(factor), _MOST_GAINED)

    def apply(self, workload: Components, value: Value) -> None:
        size = int(value)
        if not size:
            return
        if workload.has_loader:
            from advisor.step.loader import rebuild

            workload.data = rebuild(workload.data, batch_size=size)
        workload.batch_size = size  # a trial makes a batch of this size where there is no loader

    def options(self, value: Value) -> Mapping[str, Any]:
        """The argument of the DataLoader's constructor, as the recipes for a loader have it."""
        return {"batch_size": int(value)} if value else {}

    def code(self, value: Value) -> str:
        if not value:
            return "# the batch size stays as it is\n"
        return f"loader = torch.utils.data.DataLoader(..., batch_size={int(value)})\n"

    def why(self, facts: Facts, value: Value) -> str:
        return f"{super().why(facts, value)}{_advice(facts, int(value))}"

    def numerics_of(self, value: Value, mode: Mode) -> Numerics:
        return Numerics.CHANGED if mode is Mode.TRAIN else Numerics.CLOSE


def _cannot_be_resized(facts: Facts) -> Skip | None:
    loader = facts.workload.loader
    if loader is not None and loader.copy_problem:
        return Skip(loader.copy_problem)
    if loader is not None and loader.custom_batch_sampler:
        return Skip("the loader has a batch sampler of its own; change the batch size there")
    if loader is not None and loader.batch_size is None:
        return Skip("the dataset yields whole batches; change the batch size there")
    if facts.workload.resizing_problem:
        return Skip(f"{facts.workload.resizing_problem}; give a callable that takes a batch size")
    if not facts.workload.resizable_batch:
        return Skip("the batch cannot be resized: give a DataLoader, tensors, or a callable that takes a batch size")
    return None


def _samples(loader: LoaderFacts | None) -> float:
    """The most samples that a batch can have: all of the dataset."""
    if loader is None or loader.length is None or loader.batch_size is None:
        return math.inf
    return loader.length * loader.batch_size


def _memory(facts: Facts) -> float:
    """The memory that a batch may take. The CPU has a limit too: a batch that is too large ends more than the trial."""
    total = facts.workload.device_memory_bytes or facts.hardware.host.memory_available_bytes
    return _USABLE_MEMORY * total if total else math.inf


def _estimated_bytes(facts: Facts, size: int) -> float:
    """A low estimate: parameters, gradients and optimizer state, and what the forward pass keeps for the backward."""
    workload, profile = facts.workload, facts.profile
    if workload.mode is not Mode.TRAIN:
        return float(workload.parameter_bytes)
    state = workload.optimizer.state_bytes if workload.optimizer else 0
    fixed = 2 * workload.parameter_bytes + state
    if profile is None or not profile.flops_per_step or not workload.batch_size:
        return float(fixed)
    forward_flops = profile.flops_per_step / _BACKWARD_FACTOR / workload.batch_size
    return fixed + size * forward_flops * _ACTIVATION_BYTES_PER_FLOP


def _advice(facts: Facts, size: int) -> str:
    """Advice on the learning rate and warm-up for a larger batch, after the reason; empty for inference."""
    workload = facts.workload
    if workload.mode is not Mode.TRAIN or not size or not workload.batch_size or size <= workload.batch_size:
        return ""
    factor = size / workload.batch_size
    adaptive = workload.optimizer is not None and workload.optimizer.name.startswith(_ADAPTIVE)
    rule = "square-root scaling" if adaptive else "linear scaling"
    scaled = math.sqrt(factor) if adaptive else factor
    return (
        f" With {size:,} samples in place of {workload.batch_size:,}, start from {scaled:.3g} times the learning rate "
        f"({rule}), reached by a warm-up over the first epochs, and tune the weight decay again."
    )
