"""Next batch copied ahead

What it does: Wraps the DataLoader so that its batches are on the GPU already: while a step computes, another CUDA
stream copies the next batch. The loop does not change.

Why it helps: A copy in the step's stream waits for the step before it, and the step waits for the copy. GPUs can copy
and compute at the same time: on a second stream the copy costs almost no time.

When it does not: The gain is at most the time of the copies (host-to-device in the profile). Copies overlap fully only
from pinned memory: try it with pin_memory. One more batch takes GPU memory. A step that waits for its data needs
workers instead. Lightning Fabric's `setup_dataloaders` accepts only a DataLoader.

Numerics: exact: the same bytes arrive, in the same order.

References: PyTorch documentation, CUDA streams. PyTorch tutorial, non_blocking and pin_memory().
"""

from advisor.recipe import CUDA, NO_LOADER, Bottleneck, Facts, Phase, Proposal, Recipe, Skip

_CODE = """\
def copied_ahead(loader):
    stream, upcoming = torch.cuda.Stream(device), None
    for batch in loader:
        ready = upcoming
        torch.cuda.current_stream(device).wait_stream(stream)
        stream.wait_stream(torch.cuda.current_stream(device))  # memory given back may still be read
        with torch.cuda.stream(stream):
            upcoming = [tensor.to(device, non_blocking=True) for tensor in batch]
        if ready is not None:
            yield ready
    torch.cuda.current_stream(device).wait_stream(stream)
    if upcoming is not None:
        yield upcoming


# in the loop: for inputs, targets in copied_ahead(loader)
"""


class GpuPrefetch(Recipe):
    key = "data.device_prefetch"
    plan_field = "device_prefetch"
    devices = CUDA
    attacks = frozenset({Bottleneck.INPUT, Bottleneck.COPY})
    phases = frozenset({Phase.DATA_WAIT, Phase.HOST_TO_DEVICE})
    gain = 1.05
    # Copy and step overlap: 1.42x if both take as long, 0.73x if the copy is all (tests/gpu/RESULTS.md).
    saves = {Phase.HOST_TO_DEVICE: 1.0}
    codes = {True: _CODE}

    def candidates(self, facts: Facts) -> Proposal:
        return [True] if facts.workload.loader else Skip(f"{NO_LOADER}: one batch stays on the GPU")
