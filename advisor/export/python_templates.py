"""The text of the exported Python file: its parts as they stand there, for ``python_file`` to put together."""

from string import Template

HEADER = Template("""What perf-advisor $version measured to be faster, as plain PyTorch. Needs $packages.

The settings:

$settings

How to use it:

$usage""")

TRAIN_USAGE = """
    model, optimizer, loader = prepare(model, optimizer, loader)
    scheduler = LambdaLR(optimizer, ...)  # where there is one: made for the optimizer that came back
    step = train_step(model, optimizer, loss_fn)
    for batch in loader:
        loss = step(batch)
        scheduler.step()

A checkpoint holds what that of a plain loop holds, and the step, which has the gradient scaler (step.scaler, None
without one) and counts the batches of an update:

    torch.save([part.state_dict() for part in (model, optimizer, scheduler, step)], path)
    for part, state in zip((model, optimizer, scheduler, step), torch.load(path)):
        part.load_state_dict(state)
"""

INFER_USAGE = """
    model, _, loader = prepare(model, loader=loader)
    step = infer_step(model)
    for batch in loader:
        output = step(batch)
"""

OWN_STEP_USAGE = """
    model, optimizer, loader = prepare(model, optimizer, loader)  # of several, each model with its optimizer
    step = own_step(step, model)
    for batch in loader:
        result = step(batch)  # what your step returns
"""

PREPARE = '''
def prepare(model, optimizer=None, loader=None):
    """Apply the settings to the objects. Use what comes back; make learning-rate schedulers after this."""
'''

CAPTURABLE = """
# A compiled or captured step cannot ask the host: the optimizer counts its steps on the device.
if optimizer is not None:
    make_capturable(optimizer, device)
"""

JOIN_RANKS = """
# Under torchrun this process joins the others, on the GPU of its own.
not_spread = why_not_spread(PLAN["strategy"])
if not_spread:
    import warnings

    warnings.warn(not_spread, stacklevel=2)
else:
    join_ranks(model)
"""

SPREAD = """
# The model is spread over the ranks, and the loader gives each its part of every batch.
if not not_spread:
    spread_over_ranks(model, optimizer, step_plan(model))
    loader = share_of_loader(loader, step_plan(model))
"""

AS_WRITTEN = """
# A model that is compiled already is compiled anew.
model = getattr(model, "_orig_mod", model)
model._compiled_call_impl = None
"""

TELL_ATTENTION_APART = """
# This cache of the compiler would take a graph of another attention kernel for this one (pytorch/pytorch#186458).
from torch._functorch import config as autograd_config

autograd_config.enable_autograd_cache = False
"""

DEVICE_LOADER = Template("""
# Batches arrive on the device.
if isinstance(loader, torch.utils.data.DataLoader):
    move = mover_of(step_plan(model, non_blocking=$non_blocking))
    loader = DeviceLoader(loader, device, $move, $ahead)
""")

STEP_PLAN = '''
def step_plan(model, **changes):
    """How a step runs: PLAN, on the device of the model."""
    device = next(model.parameters()).device
    return StepPlan(**{**PLAN, "device": str(device), "device_type": device.type, "clip_norm": None, **changes})
'''

TRAIN_STEP = Template('''
def train_step(model, optimizer, loss_fn=None, clip_grad=None):
    """A callable ``step(batch) -> detached loss``. Pass what ``prepare`` returned.

    ``loss_fn`` is ``loss_fn(output, target)`` or ``loss_fn(model, batch)``; without one the model's own loss is taken,
    or a usual one for its output and the target. A batch is ``(inputs, target)``, or a dict of the model's keyword
    arguments and the target. ``clip_grad`` is what the norm of the gradients is clipped to before the update.
    ``step.scaler`` is the gradient scaler, None without one; ``step.state_dict()`` and ``step.load_state_dict()`` are
    for checkpoints.
    """
    start_training(model)
    plan = step_plan(model, clip_norm=clip_grad)
    step = TrainStep($model, optimizer, loss_fn, plan$update)
    return $step
''')

KNOWN_LOSS = '''
class LossTries:
    """Nothing has to be tried: when perf-advisor ran this loss, its signature told how it is called."""

    are_open = False

    def __init__(self, call, loss):
        if call.loss_takes_model is None:
            raise LossError(
                f"the loss {describe_loss(loss)} can be called in two ways.",
                "Write it as `def loss(output, target)` or `def loss(model, batch)`, with these names.",
            )

    def settle(self, batch):
        return ""
'''

INFER_STEP = Template('''
def infer_step(model):
    """A callable ``step(batch) -> output``. A batch is a tensor, a tuple of inputs, or a dict of keyword arguments."""
    model.eval()
    step = InferStep(model, step_plan(model))
    return $step
''')

OWN_STEP = Template('''
def own_step(step, model):
    """Your own ``step(batch)`` under what the settings put around it; it returns what yours does.

    ``model`` is one of those that it works with.
    """
    step = OwnStep(step, model, step_plan(model))
    return $step
''')

LEFT_OUT = Template("""
try:
$call
except $error as error:
    import warnings

    warnings.warn(f"$reason{error}", stacklevel=2)
""")

LIBRARY = """
# --- how a step runs: the code that perf-advisor measured with --------------------------------------------------
"""
