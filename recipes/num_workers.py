"""DataLoader workers

What it does: Loads and transforms the batches in this many worker processes (`num_workers`). PyTorch starts new workers
in each epoch. With 0, the training process does that work itself, between the steps.

Why it helps: Workers prepare the next batches while the device computes, so the step no longer waits for input.

When it does not: The gain is at most the share of the step that waits for data. Workers compete with a model on the CPU
for cores, take seconds and memory to start, and send batches through shared memory: a dataset that only slices tensors
can become slower. During an epoch, workers and loop do not see each other's changes to the dataset. An iterable dataset
gets at most one worker, unless it already has several. Open files in the workers.

Numerics: exact: the sampler still decides the order. Random numbers of the dataset come from the workers' own seeds, as
PyTorch documents. Several workers reorder an iterable dataset, and each worker forms its own last batch.

References: PyTorch documentation, torch.utils.data. PyTorch Performance Tuning Guide. NVIDIA ECCV 2020 tuning guide.
"""

import math

from advisor.recipe import LoaderRecipe, WholeNumbers, gain_from
from advisor.records import ONE_WORKER, Facts, LoaderFacts, Phase, Proposal, Skip, Value

# The largest factor by which a session shortens a step without its data wait: 3 to 30 (many small layers, H200).
_TUNED = 30.0
_LEAST_REST = 0.01
# The time in which a worker loads and sends a batch, divided by the time to load it. A step that waited 16 ms for 77 MB
# took 39 ms with two workers, 28 of them for computing (one H200).
_SENDING = 2.0


class NumWorkers(LoaderRecipe):
    key = "data.num_workers"
    values = WholeNumbers(0, such_as=(0, 1))
    ladder = True

    def values_for(self, loader: LoaderFacts, facts: Facts) -> Proposal:
        if loader.workers_problem:
            return Skip(loader.workers_problem)
        if loader.iterable_dataset and loader.num_workers <= 1:
            return Skip(ONE_WORKER) if loader.num_workers else [1]
        if loader.num_workers:
            return _ladder(facts.hardware.host.usable_cores)
        enough, profile = math.inf, facts.profile
        if profile is not None:
            # So many workers deliver a batch in the time of a tuned step without its data wait. Without workers, the
            # data wait is the time to load a batch; a worker also has to send it.
            wait_ms = profile.phases.get(Phase.DATA_WAIT, 0.0)
            rest_ms = max(profile.step_ms - wait_ms, _LEAST_REST * profile.step_ms) / _TUNED
            enough = 2.0 ** math.ceil(math.log2(max(_SENDING * wait_ms / rest_ms, 1.0)))
        # The largest number first, because several workers may gain even if one worker does not.
        return _ladder(int(min(enough, facts.hardware.host.usable_cores)))[::-1]

    def expected_gain(self, facts: Facts, value: Value) -> float:
        # Workers load while the step computes, so the longer of the two times remains. tests/gpu/RESULTS.md: 3.04x with
        # 16 workers on JPEG images, 2.87x with 2 on a CPU.
        loader, workers = facts.workload.loader, int(value)
        present = loader.num_workers if loader else 0
        if not workers:
            return 0.7 if present else 1.0
        if facts.profile is None:
            return 1.02 if present else 1.5
        wait = facts.profile.share(Phase.DATA_WAIT)
        loading = present / workers if present else wait / workers
        return gain_from(1 - max(1 - wait, loading))


def _ladder(most: int) -> list[Value]:
    """The powers of two below ``most``, then ``most`` itself."""
    powers = [2**exponent for exponent in range(most.bit_length()) if 2**exponent < most]
    return [*powers, max(most, 1)]
