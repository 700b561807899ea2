"""Batch size

What it does: Doubles the batch size until the throughput (samples per second) stops rising or the memory is full. The
recommended size is the knee: the smallest size within 3 % of the best throughput. A tenth of the device's memory is
kept free. The value 0 leaves the batch size unchanged.

Why it helps: More samples share the fixed costs (launches, optimizer, weights), and larger products fill the device.

When it does not: On a busy device, twice the batch takes twice the time. A step that waits for its input waits for
twice the input, and in inference every request waits longer. In training a larger batch is a new experiment. Multiply
the learning rate by the factor of the batch size (SGD) or by its square root (Adam and similar), with a warm-up, and
tune the weight decay again. Very large batches need LARS or LAMB, and can still reach a lower accuracy.

Numerics: changed: the caller has to give other batches. In training there are fewer updates, each from more samples,
and batch norm sees other statistics. In inference outputs stay close: products of other sizes may sum in another order.

References: Goyal et al., Accurate, Large Minibatch SGD, 2017. Malladi et al., On the SDEs and Scaling Rules for
Adaptive Gradient Algorithms, 2022. NVIDIA ECCV 2020 tuning guide. Hugging Face, Efficient training on a single GPU.
"""

import math

from advisor.figures.sweep import USABLE_MEMORY
from advisor.recipe import Components, LoaderRecipe, WholeNumbers, is_host_bound
from advisor.records import Bottleneck, Facts, Mode, Phase, Proposal, Skip, Value, Values

# Largest expected speed-up, a factor; measured on a small network from 32 to 2,048 samples (tests/gpu/RESULTS.md).
_MOST_GAINED = 4.8
# Bytes of activations kept per floating-point operation of a training step; a low estimate. A step keeps about 12 bytes
# per output of a layer. An output takes 500 to 2,000 operations in the forward pass, and three times as many in a step.
_ACTIVATION_BYTES_PER_FLOP = 1 / 500 / 3
# The update of these optimizers does not grow with the gradient, so the square-root rule is the usual one.
_ADAPTIVE = ("Adam", "Adagrad", "Adafactor", "Adadelta", "RMSprop", "Lion", "LAMB", "Lamb")


class BatchSize(LoaderRecipe):
    key = "data.batch_size"
    values = WholeNumbers(0, such_as=(0, 8))
    attacks = frozenset({Bottleneck.LAUNCH, Bottleneck.COMPUTE, Bottleneck.MEMORY})
    phases = frozenset[Phase]()
    ladder = True

    def candidates(self, facts: Facts) -> Proposal:
        workload = facts.workload
        if reason := _why_fixed(facts):
            return Skip(reason)
        present, loader = workload.batch_size or 1, workload.loader
        samples = (loader.length or math.inf) * (loader.batch_size or 1) if loader else math.inf
        filled = [size for size in (present * 2**exponent for exponent in range(1, 9)) if size <= samples]
        if not filled:
            return Skip(f"the dataset is smaller than two batches of {present}")
        # The CPU's memory limits it too: when it is full, the system ends other programs as well.
        memory = workload.device_memory_bytes or facts.hardware.host.memory_available_bytes or math.inf
        fitting = [size for size in filled if _estimated_bytes(facts, size) < USABLE_MEMORY * memory]
        return list(fitting) or Skip(f"a batch of {filled[0]} is estimated not to fit in the device's memory")

    def gain_for(self, facts: Facts, value: Value) -> float:
        # tests/gpu/RESULTS.md: on a host-bound GPU 1.9x in samples per second for twice the batch, 4.8x for 64 times;
        # 1.34x at most on a CPU. A busy device gains little.
        present = facts.workload.batch_size
        if not present or int(value) <= present:
            return 1.0
        if not facts.on_cuda:
            return 1.05
        factor = int(value) / present
        if facts.profile and facts.profile.device_busy_share:
            return max(1.02, min(factor, 1 / facts.profile.device_busy_share, _MOST_GAINED))
        return min(1.0 + (0.5 if is_host_bound(facts) else 0.05) * math.log2(factor), _MOST_GAINED)

    def apply(self, workload: Components, value: Value) -> None:
        super().apply(workload, value)
        if value:
            workload.batch_size = int(value)  # without a loader, a trial makes a batch of this size

    def options(self, value: Value) -> Values:
        return super().options(value) if value else {}

    def why(self, facts: Facts, value: Value) -> str:
        reason, present, optimizer = super().why(facts, value), facts.workload.batch_size, facts.workload.optimizer
        if facts.workload.mode is not Mode.TRAIN or not present or int(value) <= present:
            return reason
        adaptive = optimizer is not None and optimizer.name.startswith(_ADAPTIVE)
        rule = "square-root scaling" if adaptive else "linear scaling"
        scaled = (int(value) / present) ** (0.5 if adaptive else 1)
        return (
            f"{reason} With {value:,} samples in place of {present:,}, start from {scaled:.3g} times the learning rate "
            f"({rule}), reached by a warm-up over the first epochs, and tune the weight decay again."
        )


def _why_fixed(facts: Facts) -> str:
    """The reason that the batch has to keep its size; empty if the size can change."""
    workload, loader = facts.workload, facts.workload.loader
    if loader is not None and (loader.copy_problem or loader.custom_batch_sampler):
        return loader.copy_problem or "the loader has a batch sampler of its own; change the batch size there"
    if loader is not None and loader.batch_size is None:
        return "the dataset yields whole batches; change the batch size there"
    if workload.resizing_problem:
        return f"{workload.resizing_problem}; give a callable that takes a batch size"
    advice = "give a DataLoader, tensors, or a callable that takes a batch size"
    return "" if workload.batch_size else f"the size of the batch is not known: {advice}"


def _estimated_bytes(facts: Facts, size: int) -> float:
    """A low estimate of a step's memory: parameters, gradients, optimizer state and activations kept for backward."""
    workload, profile = facts.workload, facts.profile
    if workload.mode is not Mode.TRAIN:
        return float(workload.parameter_bytes)
    fixed = 2 * workload.parameter_bytes + (workload.optimizer.state_bytes if workload.optimizer else 0)
    flops = profile.flops_per_step if profile is not None else None
    return fixed + size * (flops or 0) / (workload.batch_size or 1) * _ACTIVATION_BYTES_PER_FLOP
