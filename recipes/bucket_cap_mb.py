"""Size of the gradient buckets

What it does: Sets how many MiB of gradients DistributedDataParallel collects before it sends them: 25 by default.

Why it helps: Fewer, larger messages use more of the link's bandwidth and take fewer launches.

When it does not: The last bucket is sent after the backward pass, so the step waits longer for a larger bucket. A model
with less than 25 MiB of gradients has one bucket anyway.

Numerics: exact, up to the order of sums.

References: PyTorch documentation, DistributedDataParallel. Li et al., PyTorch Distributed, VLDB 2020, section 5.4.
"""

from advisor.recipe import Facts, ParallelRecipe, Proposal, Skip


class BucketCapMb(ParallelRecipe):
    key = "parallel.bucket_cap_mb"
    values = (25, 50, 100, 200)
    gain = 1.01

    def candidates(self, facts: Facts) -> Proposal:
        gradients_mib = facts.workload.parameter_bytes / 2**20
        sizes = [value for value, before in zip((50, 100, 200), (25, 50, 100), strict=True) if gradients_mib > before]
        return sizes or Skip(f"all gradients ({gradients_mib:.0f} MiB) fit into one bucket of 25 MiB")
