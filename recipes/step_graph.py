"""Whole step in a CUDA graph

What it does: Records the kernels of a whole step once (forward, backward and optimizer when training) and replays them
with a single launch. Each batch is copied into the tensors that the recording reads; each form of batch has its own
recording.

Why it helps: A step of many small kernels is bound by the host that launches them; a replay costs one launch, whatever
their number.

When it does not: Long kernels hide their launches and gain nothing, and the graph keeps its own memory. The step must
not make the host wait: no `.item()`, no branching on a tensor's value, no random numbers of Python's or NumPy's;
PyTorch's error names the line. Learning rates go into tensors, so schedules work. Before each replay the step looks at
training modes, frozen parameters, hooks, and numbers, strings and flags near it: in the closures and globals that the
loss or the step names, and in the attributes of what is found there. A change there records anew: keep a number that
changes often in a tensor. After changing anything else call `step.recapture()`. Under float16 the update stays outside
the recording, as with optimizers that count on the host. Where only the loss makes the host wait, `around_loss` records
the model's two passes and runs the loss between them.

Numerics: exact in inference. close in training: exact with SGD, but Adam and AdamW keep their step count and learning
rate on the device, where the bias corrections are rounded in float32.

References: PyTorch documentation, CUDA semantics, CUDA Graphs. PyTorch blog, Accelerating PyTorch with CUDA Graphs.
"""

from advisor.recipe import CUDA, Bottleneck, Facts, Proposal, Recipe, Skip, Value
from advisor.recipe.plan import AROUND_LOSS

# Largest expected speed-up, a factor: beyond it a profiled share is mostly the profiler's own overhead.
_MOST_GAINED = 8.0

_CAPTURE = """\
# after some steps on a side stream, with static tensors for the batch:
# graph = torch.cuda.CUDAGraph()
# with torch.cuda.graph(graph):
#     static_loss = loss_fn(model(static_inputs), static_targets)
#     static_loss.backward()
#     optimizer.step()
# for inputs, targets in loader:
#     static_inputs.copy_(inputs), static_targets.copy_(targets)
#     graph.replay()
"""
_CAPTURE_AROUND = """\
# of a model that takes and returns tensors; the loss and the update run as they are
model = torch.cuda.make_graphed_callables(model, (inputs.to(device),))
"""


class StepGraph(Recipe):
    key = "step.cuda_graph"
    plan_field = "cuda_graph"
    devices = CUDA
    attacks = frozenset({Bottleneck.LAUNCH})
    usual = frozenset({True})
    keeps_code = True  # the graph captures the same kernels
    over_ranks = True
    conflicts = ((AROUND_LOSS, "compile.scope", "with_loss", "around_loss records a step compiled without its loss"),)
    codes = {False: "# every step is launched kernel by kernel\n", True: _CAPTURE, AROUND_LOSS: _CAPTURE_AROUND}

    def candidates(self, facts: Facts) -> Proposal:
        if problem := facts.workload.graph_problem:
            return Skip(problem)
        if facts.workload.takes_arguments_only:
            return Skip("the Trainer runs the steps itself; compile.mode: reduce-overhead gives it CUDA graphs")
        optimizer = facts.workload.optimizer
        counts_no_steps = optimizer is not None and optimizer.builtin and optimizer.name == "SGD"
        if facts.workload.own_step and optimizer is not None and not (optimizer.capturable or counts_no_steps):
            return Skip(f"{optimizer.name} counts its steps on the host, and your own step is captured as a whole")
        return [True]

    def gain_for(self, facts: Facts, value: Value) -> float:
        # What remains is the device's work. tests/gpu/RESULTS.md: 5.23x and 4.34x on small models, 1.01x on large ones.
        share = facts.profile.device_busy_share if facts.profile else None
        if share is None:
            return 1.3
        share /= facts.gpus  # each computes a part of the batch, and its host launches as many kernels as before
        return min(_MOST_GAINED, 1 / share) if share > 0 else _MOST_GAINED
