"""The part of a difference that rounding explains between two runs of the same steps.

It is the largest of

- 16 times the unit round-off of the coarsest arithmetic that the settings bring in or the user's own permit
  (``Recipe.rounding``). Errors of independent roundings add up with the square root of their number (Higham and Mary,
  A new approach to probabilistic rounding error analysis, SIAM J. Sci. Comput. 41, 2019): 16 is a chain of 256. In
  bfloat16 that is 6 %, in float16 and TensorFloat-32 0.8 %. Training survives such errors (Micikevicius et al., Mixed
  Precision Training, ICLR 2018).
- Twice the error that this round-off has in this very workload, where the baseline's steps in a higher precision (the
  reference) show it: its outputs are so many of its own round-offs off, and in another arithmetic they will be about as
  many of that (a measured condition number). The outputs of a new ResNet-50 (16 images, on the CPU) are 1.8 % off in
  emulated TensorFloat-32, 37 round-offs, and 12 % in bfloat16, 31.
- A multiple of the baseline's own distance from the reference: 8 times for outputs and norms, 128 times for losses.
  Once the weights have been updated an error grows by leaps (a sign of Adam's, an activation that opens or closes),
  which one run may be spared.
- A floor, for other orders of summation and other algorithms in float32. It grows with each update, for the losses by
  8: an unstable beginning of training amplifies an error by as much.

A step at which that comes to a half tells nothing, and neither does a later one. The first step is compared all the
same: half of a result is more than arithmetic excuses.

Measured with nets of 2 to 50 layers (linear, convolutional, attention, recurrent; SGD and Adam) in float32, on the
CPU. Outputs: 6e-8 to 5e-5 from float64, with another layout up to 8e-5; with emulated TensorFloat-32 1e-4 to 2e-3, new
ResNets up to 5e-2; under bfloat16 autocast 2e-3 to 3e-2, ResNet-50 0.1 to 0.3. Losses with another layout 1e-8 to 1e-2,
where 1e-10 to 3e-5 of the norm. Planted faults: an epsilon of 0.01 in the normalisation 5e-3 to 6e-2 of the outputs, a
bias that is dropped 7e-2 to 1, GELU by its tanh formula 8e-5 to 8e-4; AdamW without its weight decay 6e-6 to 2e-5 of
the norm with each update and as little as 5e-7 of the losses, SGD without it 2e-6 to 2e-3 of the norm.

Without a reference 128 round-offs are allowed for outputs and 16 for losses; at least 2**-8 for outputs and the first
loss, 2**-3 for later losses. Where the steps draw random numbers (dropout), a setting may draw others: then the
baseline's own runs with other random streams show how much that is, and a smaller fault stays hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.recipe.catalog import Catalog
from advisor.records import WorkloadFacts

DEFAULT_TOLERANCE = 2.0**-8
# Half of a result is more than rounding may excuse; a later step where it does says nothing.
_SAYS_NOTHING = 0.5
_CHAIN = 16.0
_PER_AMPLIFIED = 2.0
# Outputs nearer to the reference than this share of what an arithmetic rounds to were not computed in it.
_UNUSED = 0.25
_FLOAT32_ROUNDING = 2.0**-24
_TF32_ROUNDING = 2.0**-11
_HALF_ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
_TF32_FAMILIES = ("conv1d", "conv2d", "conv3d", "recurrent")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A compared quantity (losses, outputs, weights), and the part of its difference that rounding explains.

    ``share`` of what rounding does to the outputs shows in it. That and the ``floor`` grow with each update, by
    ``growth`` and ``floor_growth``. ``per_reference`` is in distances of the baseline from the reference; where there
    is none, ``chain`` round-offs, ``first_at_least`` and ``later_at_least`` are allowed, the last from the second step
    on.
    """

    name: str
    per_reference: float
    floor: float
    share: float = 1.0
    chain: float = _CHAIN
    growth: float = 1.0
    floor_growth: float = 1.0
    first_at_least: float = 0.0
    later_at_least: float = 0.0


LOSSES = Quantity(
    "losses",
    per_reference=128.0,
    floor=2.0**-18,
    growth=2.0,
    floor_growth=8.0,
    first_at_least=DEFAULT_TOLERANCE,
    later_at_least=2.0**-3,
)
OUTPUTS = Quantity("outputs", per_reference=8.0, floor=2.0**-16, chain=128.0, first_at_least=DEFAULT_TOLERANCE)
# An error of the gradients reaches the norm through the update, which is a small part of the weights.
WEIGHTS = Quantity("weights", per_reference=8.0, floor=2.0**-19, share=2.0**-7, growth=4.0, floor_growth=4.0)


def tolerances(quantity: Quantity, steps: int, explained: float, own: Sequence[float]) -> tuple[float, ...]:
    """The tolerance of each step, up to the one from which on nothing can be told.

    ``explained`` is from :func:`explained_by`; ``own`` are the baseline's distances from the reference, step for step,
    empty where there is none.
    """
    allowed: list[float] = []
    for step in range(steps):
        grown = quantity.share * explained * quantity.growth**step
        at_least = quantity.later_at_least if step else quantity.first_at_least
        if own:
            # Nothing is updated before the first step. Later steps differ by chance, so the largest difference counts.
            at_least = quantity.per_reference * (max(own) if step else own[0])
        tolerance = max(grown, quantity.floor * quantity.floor_growth**step, at_least)
        if step and tolerance >= _SAYS_NOTHING:
            break
        allowed.append(min(tolerance, _SAYS_NOTHING))
    return tuple(allowed)


def explained_by(quantity: Quantity, rounding: float, own_rounding: float, output_error: float | None) -> float:
    """The relative error of the outputs that arithmetic of this unit round-off explains.

    ``own_rounding`` is that of the user's own arithmetic, ``output_error`` what the reference shows it to do to the
    outputs, None where it shows nothing: then it is a guess for each quantity.
    """
    if output_error is None:
        return quantity.chain * rounding
    used = own_rounding if output_error >= _UNUSED * own_rounding else 0.0
    amplification = output_error / max(used, _FLOAT32_ROUNDING)
    return max(_CHAIN, _PER_AMPLIFIED * amplification) * rounding


def own_rounding(catalog: Catalog, workload: WorkloadFacts) -> float:
    """The unit round-off of the coarsest arithmetic that the user's own settings use or permit; 0 is plain float32.

    PyTorch permits TensorFloat-32 in convolutions and recurrent layers by default, and which of their algorithms use
    it depends on shapes and layouts.
    """
    units = [catalog.rounding(workload.current)]
    units += [_HALF_ROUNDING.get(dtype, 0.0) for dtype in workload.parameter_dtypes]
    if workload.multiplies_in("tf32") and workload.has(*_TF32_FAMILIES):
        units.append(_TF32_ROUNDING)
    return max(units)
