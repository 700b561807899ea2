"""The control: no change

What it does: Nothing. It is measured like every other candidate, in its own process, with your settings.

Why it helps: Its difference from the baseline is the noise: a gain that is no larger than that shows nothing.

When it does not: It never makes anything faster. A control far from 1.00x means that the machine is not quiet: another
process uses it, its clocks change, or steps differ much from batch to batch.

Numerics: exact: the same program runs twice. Only sums without a fixed order and random numbers without a seed differ.

References: Mytkowicz et al., Producing Wrong Data Without Doing Anything Obviously Wrong, ASPLOS 2009.
"""

from advisor.recipe import Recipe, Stage


class Control(Recipe):
    key = "control.noop"
    stage = Stage.GLOBAL
    keeps_code = True  # it changes nothing
    gain = 1.0  # tests/gpu/RESULTS.md: it changes nothing
    here = {True: "It changes nothing; its difference from the baseline is the noise of this machine and workload."}
    shown = "# the control changes nothing\n"
