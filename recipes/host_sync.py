"""Places that make the host wait

What it does
------------
Runs the step once more under `torch.cuda.set_sync_debug_mode("warn")` and collects the lines of your code that make the
host wait for the GPU, with calls and time per step. It changes nothing: only you can rewrite them.

Why it helps
------------
The host launches kernels ahead of the GPU. `.item()`, `.cpu()`, `nonzero()`, indexing with a mask, `if` on a tensor and
printing one make it wait, and the GPU is idle until the next launch. Such a line also prevents a CUDA graph.

When it does not
------------
A wait is cheap where the host has caught up with the GPU anyway. Compute on the device instead (`torch.where`, masks
that multiply), read collected values after many steps, or copy with `non_blocking=True` into pinned memory. PyTorch
calls its debug mode experimental: sparse tensors and torch.distributed are not covered.

Numerics
------------
exact: the step is run as it is.

References
------------
PyTorch documentation, torch.cuda.set_sync_debug_mode. PyTorch Performance Tuning Guide, Avoid synchronization.
"""

from advisor.figures.formatting import format_ms
from advisor.recipe import CUDA, NEEDS_PROFILE, Components, Recipe, Stage
from advisor.records import Bottleneck, Facts, Proposal, Skip, SyncPlace, Value

_SHOWN = 5


class HostSync(Recipe):
    key = "loop.host_sync"
    values = ("as_written",)
    devices = CUDA
    attacks = frozenset({Bottleneck.LAUNCH})
    stage = Stage.STEP
    inside_step = True
    habit = True
    gain = 1.0  # tests/gpu/RESULTS.md: it switches nothing
    shown = (
        'torch.cuda.set_sync_debug_mode("warn")  # PyTorch then warns at each line that makes the host wait\n'
        "model(inputs)\n"
        'torch.cuda.set_sync_debug_mode("default")\n'
    )

    def candidates(self, facts: Facts) -> Proposal:
        if facts.instrumented is None:
            return NEEDS_PROFILE
        places = facts.instrumented.sync_places
        if places is None:
            return Skip("the baseline's profile did not look: the step failed in PyTorch's synchronisation mode")
        return Skip(_sentence(places) if places else "the step never makes the host wait")

    def apply(self, workload: Components, value: Value) -> None:
        pass  # The waits are in the user's own code, which no setting rewrites.


def _sentence(places: tuple[SyncPlace, ...]) -> str:
    """The lines that wait, in the order of the profile: the dearest first."""
    known_ms = sum(place.blocked_ms or 0.0 for place in places)
    lines = [_figures(place) for place in places[:_SHOWN]]
    lines += [f"and {len(places) - _SHOWN} more"] if len(places) > _SHOWN else []
    count = f"{len(places)} {'line makes' if len(places) == 1 else 'lines make'} the host wait"
    return f"{count}, {format_ms(known_ms)} a step, and only you can rewrite them: {'; '.join(lines)}"


def _figures(place: SyncPlace) -> str:
    wait = "for an unknown time" if place.blocked_ms is None else format_ms(place.blocked_ms)
    times = "" if place.calls_per_step == 1 else f" in {place.calls_per_step:g} calls"
    text = f" `{place.text}`" if place.text and place.file else ""
    return f"{place.place}{text} {wait}{times}"
