"""Whole step in a CUDA graph

What it does
------------
Records the kernels of a whole step once (forward, backward and optimizer when training) and replays them with a
single launch. Each batch is copied into the tensors that the recording reads.

Why it helps
------------
A step of many small kernels is bound by the host that launches them; a replay costs one launch, whatever their
number.

When it does not
----------------
When the kernels are long enough to hide their launches, a replay gains nothing. The graph keeps memory of its own, so
the reserved memory grows. The step must have fixed shapes and must not make the host wait: no `.item()`, no branching
on a tensor's value, no batch that is smaller than the others (use `drop_last=True`). Where only the loss does such
things, as one that matches boxes or reads lengths, `around_loss` records the model's forward and backward pass in two
graphs and runs the loss between them.

What the step of `train_step` does about values that are no part of a graph:

- It copies learning rates in before each replay, so schedules work. When another number changes that the model or the
  loss reads, or a tensor is replaced, it records anew.
- What a step leaves in attributes and dictionaries for the loop to read, a replay leaves there too.
- What a step makes of Python's numbers and sends to the GPU, as `torch.tensor([1.0, 2.0], device=x.device)` does, is
  kept there. A recording fails where these numbers differ from step to step.
- The update stays outside the recording, and runs after each replay, where it needs the host: under float16, whose
  gradient scaler asks it, and with an optimizer that counts its steps there, such as Adagrad and other libraries' own.
- A step is not recorded, and a warning says why, where it keeps a state in an attribute from one call to the next,
  decides by random numbers of the host or by a clock, reads a file, takes values from an iterator, gets sparse batches
  or writes into its batch.

Under DistributedDataParallel the recording holds the exchange of gradients too. It is made after eleven steps, since
the wrapper times the first ten and waits for the GPU then, and the wrapper has to be made on a stream of its own:
`prepare` does both. `fully_shard` and DataParallel are not recorded.

A step of your own is recorded whole, several optimizers and all, once two of its first calls were seen to do the same.
One that reads a result (`.item()`), copies other tensors between the host and the GPU, draws numbers on the host, reads
a clock or counts its calls is left as it is, with the reason. In a recording that you write yourself, Python numbers
are frozen, the learning rate among them.

Numerics
--------
exact in inference: the same kernels run in the same order. close in training: exact with SGD, but Adam and AdamW keep
their step count and learning rate on the device in a recorded step. There the bias corrections are rounded in float32;
the host computes them in double precision.

References
----------
PyTorch documentation, CUDA semantics, CUDA Graphs, whole-network capture and usage with
DistributedDataParallel. PyTorch blog, Accelerating PyTorch with CUDA Graphs. NVIDIA CUDA C++ Programming Guide, CUDA
Graphs.
"""

from advisor.recipe import CUDA, MODES_WITH_GRAPHS, Recipe
from advisor.records import Bottleneck, Facts, Mode, Numerics, OptimizerFacts, Proposal, Skip, Value, Values

_AROUND_LOSS = "around_loss"
_KEEPS_NO_STEP_COUNT = frozenset({"SGD"})
# Largest expected speed-up, a factor: beyond it a profiled share is mostly the profiler's own overhead.
_MOST_GAINED = 8.0

_CAPTURE = """\
updates_inside = isinstance(optimizer, torch.optim.SGD)
if optimizer is not None:
    for group in optimizer.param_groups:
        if "capturable" in group:  # others count their steps on the host: their update stays outside
            group["capturable"] = updates_inside = True
    optimizer.load_state_dict(optimizer.state_dict())  # moves step counts to the device
static_inputs = inputs.to(device).clone()
static_targets = None if targets is None else targets.to(device).clone()


def whole_step():
    if optimizer is None:
        with torch.no_grad():
            return model(static_inputs)
    optimizer.zero_grad(set_to_none=True)
    loss = loss_fn(model(static_inputs), static_targets)
    loss.backward()
    if updates_inside:
        optimizer.step()
    return loss


def update():
    if optimizer is not None and not updates_inside:
        optimizer.step()


side_stream = torch.cuda.Stream()
side_stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side_stream):  # warm-up steps: they train
    for _ in range(3):
        whole_step()
        update()
torch.cuda.current_stream().wait_stream(side_stream)
if optimizer is not None:
    optimizer.zero_grad(set_to_none=True)  # the capture then makes the gradients in its own memory
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, capture_error_mode="thread_local"):
    static_output = whole_step()

# for each batch of the same shape: copy it in, replay; static_output holds the loss, or the model's output
static_inputs.copy_(inputs)
if static_targets is not None:
    static_targets.copy_(targets)
graph.replay()
update()
"""

_CAPTURE_AROUND = """\
# of a model that takes and returns tensors; the loss and the update run as they are
model = torch.cuda.make_graphed_callables(model, (inputs.to(device),))
"""


class StepGraph(Recipe):
    key = "step.cuda_graph"
    values = (False, True, _AROUND_LOSS)
    plan_field = "cuda_graph"
    devices = CUDA
    attacks = frozenset({Bottleneck.LAUNCH})
    partners = frozenset({"autocast", "channels_last", "compile", "fused_optimizer", "tf32"})
    usual = frozenset({True})
    numerics = Numerics.CLOSE
    keeps_code = True  # the graph captures the same kernels
    over_ranks = True
    codes = {False: "# every step is launched kernel by kernel\n", True: _CAPTURE, _AROUND_LOSS: _CAPTURE_AROUND}

    def candidates(self, facts: Facts) -> Proposal:
        if problem := facts.workload.capture_problem:
            return Skip(problem)
        optimizer = facts.workload.optimizer
        if facts.workload.own_step and optimizer is not None and not _can_be_captured(optimizer):
            return Skip(
                f"{optimizer.name} counts its steps on the host and takes no `capturable` option, and your own step is "
                "recorded whole"
            )
        return [True]

    def gain_for(self, facts: Facts, value: Value) -> float:
        # What remains is what the device computes. tests/gpu/RESULTS.md: 5.23x and 4.34x on small models, 1.01x on
        # large ones.
        share = facts.profile.device_busy_share if facts.profile else None
        if share is None:
            return 1.3
        share /= facts.gpus  # each computes a part of the batch, and its host launches as many kernels as before
        return min(_MOST_GAINED, 1 / share) if share > 0 else _MOST_GAINED

    def numerics_of(self, value: Value, mode: Mode) -> Numerics:
        return Numerics.EXACT if mode is Mode.INFER else Numerics.CLOSE

    def conflict(self, value: Value, settings: Values) -> str | None:
        if not value:
            return None
        if value == _AROUND_LOSS and settings.get("compile.scope") == "with_loss":
            return "compile.scope with_loss compiles the loss into what step.cuda_graph: around_loss records without it"
        mode = settings.get("compile.mode")
        if mode in MODES_WITH_GRAPHS:
            return f"compile.mode {mode} records CUDA graphs of its own, which cannot be captured into step.cuda_graph"
        return None


def _can_be_captured(optimizer: OptimizerFacts) -> bool:
    return optimizer.capturable or (optimizer.builtin and optimizer.name in _KEEPS_NO_STEP_COUNT)
