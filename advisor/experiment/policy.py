"""The constants of the experiment: each with its meaning, its unit, and where the figure comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """The constants of the search. Gains are speed-up factors; shares are 0 to 1.

    Expected gains only order the moves and end the search; no figure that is reported contains one.

    ``leap_gain``: the usual stack without compiling, over the baseline. The median of the ten workloads of
    tests/benchmarks is 1.9.
    ``bold``: a leap that is expected to gain this much comes before all other moves, is started though it may end too
    late, and is given all the time that is left. Compiling usually gains 1.3 on a GPU, and 1.15 on a CPU, where it
    takes longer than all the rest (tests/gpu/RESULTS.md).
    ``before_leap``: the largest share of the budget that a second run of the baseline may take before a bold leap.
    ``timid``: the most that is expected of compiling a stack that is slower than the baseline without it.
    ``least_gain``: what is expected to gain less than this is not worth a trial for the sake of the stack.
    ``information``: what a figure for the ranked list is worth, as a gain, where it cannot change the stack.
    ``proof``: what measuring the stack in turn with the baseline is worth, as a gain: more than information, and
    about what leaving a setting out gains.
    ``drop_gain``: what leaving out a usual setting gains on average; cudnn.benchmark, which costs up to a fifth
    (ResNet-50 inference with a batch of 1: 0.44 and 0.37 ms), is why it is not smaller.
    ``hopeless``: a candidate whose trial alone was slower than this is not tried on the stack.
    ``beyond_rivals``: where a setting makes the stack this many times as fast, none that it rules out is tried in its
    place: TensorFloat-32 has half the rate of bfloat16.
    ``small_gain``: a gain below this is believed after a second run only; of twenty settings that do nothing one seems
    to gain 2 % by chance.
    ``unclear``: a setting that was neither better nor worse alone gains this share of its expected gain on the stack.
    ``as_fast``: the stack without a setting may be this much slower, and the simpler one stays. Unitless ratio.
    ``widest_for_simpler``: where the interval of that ratio is wider than this on one side, nothing is left out.
    ``most_runs``: the most processes of the same settings that the search asks for.
    ``enough_draws``: so many draws of the baseline's random numbers are seen before one that lies near is refused.
    ``most_failures``: after this many compiled stacks that failed, no other is compiled for the sake of the leap.
    ``reserve_share``: the largest share of the budget that is reserved for measuring the stack in turn.
    ``gamble``: a compilation is started when this share of its expected duration is left.
    ``safe``: where so many times the expected duration of a compilation is left, it is not made shorter to be sure.
    T5-small's was expected to take 29 s on an H200's host and took more than 41.
    ``whole_over_blocks``: compiling model and loss gains this much over the repeated blocks by themselves: 10.31x and
    9.36x of one model in tests/gpu/RESULTS.md.
    ``one_gpu``: the share of the budget that the search on one GPU gets before the search on several: the stack is
    carried over, and each of some ten trials on several GPUs takes torchrun several times as long to start.
    ``noisy``: a noise floor above this is told to the person as the machine's fault.
    """

    leap_gain: float = 1.9
    bold: float = 1.25
    before_leap: float = 0.1
    timid: float = 1.2
    least_gain: float = 1.003
    information: float = 1.0005
    proof: float = 1.02
    drop_gain: float = 1.02
    hopeless: float = 0.6
    beyond_rivals: float = 2.0
    small_gain: float = 1.05
    unclear: float = 0.3
    as_fast: float = 0.998
    widest_for_simpler: float = 0.05
    most_runs: int = 4
    enough_draws: int = 4
    most_failures: int = 4
    reserve_share: float = 0.2
    gamble: float = 0.5
    safe: float = 1.5
    whole_over_blocks: float = 1.1
    one_gpu: float = 0.5
    noisy: float = 0.1


POLICY = Policy()
