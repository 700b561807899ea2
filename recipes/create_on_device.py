"""Tensors created where they are used

What it does: The GPU is the default device while the model and the loss run, so `torch.zeros`, `torch.arange`,
`torch.randn` and the like make their tensors there. In your own code `device=x.device` is better, and needs no setting.

Why it helps: A mask or range made on the host is filled by the CPU and copied from unpinned memory; the host waits.

When it does not: Steps that make no tensor on the host gain nothing: the profile counts such tensors. With a default
device each function of PyTorch makes one more Python call, which slows host-bound steps. Code that converts such a
tensor to NumPy fails. A constant that was stored on the host stays there: register it as a buffer.

Numerics: exact: the same values. Only random numbers differ: the GPU's generator draws them.

References: PyTorch documentation, torch.set_default_device. PyTorch Performance Tuning Guide, Create tensors.
"""

from advisor.recipe import CUDA, NEEDS_PROFILE, Bottleneck, Facts, Phase, Proposal, Recipe, Skip


class CreateOnDevice(Recipe):
    key = "step.create_on_device"
    plan_field = "create_on_device"
    devices = CUDA
    attacks = frozenset({Bottleneck.COPY, Bottleneck.LAUNCH})
    phases = frozenset({Phase.FORWARD, Phase.LOSS})
    here = {True: "Tensors that the step makes on the host and copies to the GPU: {profile.host_made_tensors}."}
    gain = 1.1  # tests/gpu/RESULTS.md: 5.88x on a workload that made noise on the host, 0.94x on others
    codes = {
        False: "output = model(inputs)  # tensors are created where the code says\n",
        True: "with device:  # what is created without a device argument is made there\n    output = model(inputs)\n",
    }

    def candidates(self, facts: Facts) -> Proposal:
        if facts.instrumented is None:
            return NEEDS_PROFILE
        made = facts.instrumented.host_made_tensors
        if made is None:
            return Skip("the profile could not follow the step's operators, so it saw no tensor made on the host")
        return [True] if made else Skip("the step copies no tensor to the GPU that it made on the host itself")
