"""The control: no change

What it does: Nothing. It is measured like every other candidate, in its own process, under your settings.

Why it helps: Its distance from the baseline is the noise here: a candidate that gains no more has shown nothing.

When it does not: It never makes anything faster. A control far from 1.00x says that the machine is not quiet: another
process uses it, its clocks move, or steps differ much from batch to batch.

Numerics: exact: the same program runs twice. Sums in no fixed order differ, and random numbers without a seed.

References: Mytkowicz et al., Producing Wrong Data Without Doing Anything Obviously Wrong, ASPLOS 2009.
"""

from advisor.recipe import Recipe, Stage


class Control(Recipe):
    key = "control.noop"
    stage = Stage.GLOBAL
    keeps_code = True  # it changes nothing
    gain = 1.0  # tests/gpu/RESULTS.md: it changes nothing
    here = {True: "It changes nothing; its distance from the baseline is the noise of this machine and workload."}
    shown = "# the control changes nothing\n"
