"""The text of the exported Python file: its parts as they stand there, for ``python_file`` to put together."""

from __future__ import annotations

from string import Template

HEADER = Template("""What perf-advisor $version measured to be faster, as plain PyTorch. Needs $packages.

The settings:

$settings

How to use it:

$usage""")

TRAIN_USAGE = """
    model, optimizer, loader = prepare(model, optimizer, loader)
    step = train_step(model, optimizer, loss_fn)
    for batch in loader:
        loss = step(batch)
"""

INFER_USAGE = """
    model, _, loader = prepare(model, loader=loader)
    step = infer_step(model)
    for batch in loader:
        output = step(batch)
"""

IMPORTS = ("import inspect", "from collections.abc import Mapping", "import torch")

PREPARE = '''
def prepare(model, optimizer=None, loader=None):
    """Apply the settings to the objects. Use what comes back; make learning-rate schedulers after this."""
'''

CAPTURABLE = """
# A captured step cannot ask the host: step counts and learning rates live on the device.
if optimizer is not None and device.type == "cuda":
    capturable = "capturable" in optimizer.defaults
    for group in optimizer.param_groups:
        if capturable:
            group["capturable"] = True
        if (capturable or group.get("fused")) and not isinstance(group["lr"], torch.Tensor):
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
    for state in optimizer.state.values():
        if capturable and "step" in state:
            state["step"] = torch.as_tensor(state["step"], dtype=torch.float32, device=device)
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

TENSOR_RATES = """
# What changes between steps goes into tensors: a number would be compiled in, and compiled again when it changes.
if optimizer is not None:
    capturable = "capturable" in optimizer.defaults
    on_gpu = device.type == "cuda"
    for group in optimizer.param_groups:
        if capturable and on_gpu:
            group["capturable"] = True
        if (capturable or type(optimizer) is torch.optim.SGD) and not isinstance(group["lr"], torch.Tensor):
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
    for state in optimizer.state.values():
        if capturable and on_gpu and "step" in state:
            state["step"] = torch.as_tensor(state["step"], dtype=torch.float32, device=device)
"""

TRAIN_STEP = Template('''
def train_step(model, optimizer, loss_fn=None, clip_grad=None):
    """A callable ``step(batch) -> detached loss``. Pass what ``prepare`` returned.

    ``loss_fn`` is ``loss_fn(output, target)`` or ``loss_fn(model, batch)``; without one the model returns its loss.
    A batch is ``(inputs, target)``, or a dict of the model's keyword arguments and the target. ``clip_grad`` is what
    the norm of the gradients is clipped to before the update.
    """
$before
    model.train()

    def compute_loss(batch):
$loss

$apply

    def update(loss):
$update

    def run(batch):
$zero_grad
        loss = compute_loss(batch)
        update(loss)
        return loss.detach()

$last
''')

LOSS = """
if takes_model:
    return loss_fn(model, batch)
if loss_fn is None:
    if not isinstance(batch, Mapping):
        raise TypeError("this batch is no mapping of the model's arguments: pass a loss_fn to train_step")
    output = model(**batch)
    return output["loss"] if isinstance(output, Mapping) else output.loss
args, kwargs, target = _split(batch)
return loss_fn(model(*args, **kwargs), target)
"""

# What the compiled functions below take the place of.
WHOLE_CALLS = {
    "loss_fn(model, batch)": "whole_loss_fn(model, batch)",
    "model(**batch)": "whole_model(**batch)",
    "loss_fn(model(*args, **kwargs), target)": "whole_loss(target, *args, **kwargs)",
}

WHOLE = Template("""
# Forward pass and loss as one: whichever of these forms the loss has is compiled.
whole_model = torch.compile(model, $options)
whole_loss_fn = torch.compile(loss_fn, $options) if takes_model else None

@torch.compile($options)
def whole_loss(target, *args, **kwargs):
    return loss_fn(model(*args, **kwargs), target)

""")

ZERO_GRAD = {
    "none": "optimizer.zero_grad(set_to_none=True)",
    "zeros": "optimizer.zero_grad(set_to_none=False)",
    "manual": "for parameter in parameters:\n    parameter.grad = None",
}

COMPILED_STEP = """
@torch.compile
def compiled_step():
    optimizer.step()
"""

APPLY = Template("""
def apply_gradients():
    if clip_grad is not None:
        torch.nn.utils.clip_grad_norm_(parameters, clip_grad$foreach)
    $step
""")

# What the loop does after an update, by the values of loop.loss_item and loop.empty_cache.
AFTER_LOSS = {
    "never": [],
    "every_step": ["loss.item()  # the host waits for the device"],
    "accumulated": ["loss_sum = loss.clone() if loss_sum is None else loss_sum.add_(loss)"],
}
AFTER_MEMORY = {
    "never": [],
    "every_step": ["torch.cuda.empty_cache()"],
    "every_step_with_del": ["torch.cuda.empty_cache()  # the batch on the device is gone by now"],
}

COLLECTED = """
after_step = Collector("$how")

def collected_step(batch):
    result = $step(batch)
    after_step()
    return result

return collected_step
"""

SCALED_APPLY = Template("""
def apply_gradients():
    if clip_grad is not None:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, clip_grad$foreach)
    scaler.step(optimizer)
    scaler.update()
""")

INFER_STEP = Template('''
def infer_step(model):
    """A callable ``step(batch) -> output``. A batch is a tensor, a tuple of inputs, or a dict of keyword arguments."""
    device = next(model.parameters()).device
    model.eval()

    def run(batch):
$forward

$last
''')

FORWARD = """
args, kwargs = _arguments(model, batch)
return model(*args, **kwargs)
"""

EAGER = """
def step(batch):
    return run(_to_device(batch, device))
"""

MARKED_EAGER = """
def step(batch):
    if device.type == "cuda":
        torch.compiler.cudagraph_mark_step_begin()
    return run(_to_device(batch, device))
"""

GRAPHED_TRAIN = """
# A learning rate in a plain number would be frozen into the graph: then the update stays outside.
update_inside = all(isinstance(group["lr"], torch.Tensor) for group in optimizer.param_groups)

def captured(batch):
    loss = compute_loss(batch)
    loss.backward()
    if update_inside:
        apply_gradients()
    return loss.detach()

def after_replay():
    if not update_inside:
        apply_gradients()

step = _graphed(device, run, captured, after_replay, parameters)
"""

GRAPHED_INFER = """
step = _graphed(device, run, run, lambda: None, [])
"""

TAKES_MODEL = '''
def _takes_model(loss_fn):
    """Whether a loss is ``loss_fn(model, batch)``: its first argument is called so, or its second ``batch``."""
    if loss_fn is None or isinstance(loss_fn, torch.nn.Module):
        return False
    try:
        names = list(inspect.signature(loss_fn).parameters)
    except (TypeError, ValueError):
        return False
    return names[:1] in (["model"], ["net"], ["network"], ["module"]) or names[1:2] == ["batch"]
'''

SPLIT = '''
def _split(batch):
    """A batch as positional arguments, keyword arguments and target."""
    if isinstance(batch, Mapping):
        name = next((name for name in ("labels", "label", "targets", "target", "y") if name in batch), None)
        kwargs = {key: value for key, value in batch.items() if key != name}
        return (), kwargs, batch[name] if name is not None else None
    if isinstance(batch, (list, tuple)):
        *args, target = batch
        return tuple(args) or (target,), {}, target
    return (batch,), {}, batch
'''

ARGUMENTS = '''
def _arguments(model, batch):
    """A batch as the model's positional and keyword arguments; a target behind the inputs is left out."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if not isinstance(batch, (list, tuple)):
        return (batch,), {}
    parameters = inspect.signature(model.forward).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return tuple(batch), {}
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(parameter.default is parameter.empty for parameter in positional)
    return tuple(batch[: max(1, required)]), {}
'''

TO_DEVICE = '''
def _to_device(batch, device):
    """The batch with its tensors on the device."""
    return _map(lambda tensor: tensor.to($arguments), batch)
'''

TO_DEVICE_IN_FORMAT = '''
def _to_device(batch, device):
    """The batch with its tensors on the device, in the memory format of the model."""

    def move(tensor):
        if tensor.dim() == $rank:
            return tensor.to($arguments, memory_format=torch.$format)
        return tensor.to($arguments)

    return _map(move, batch)
'''

TO_DEVICE_AS = '''
def _to_device(batch, device):
    """The batch with its tensors on the device, and its floating-point ones in the type of the weights."""

    def move(tensor):
$move
        return tensor.to(torch.$dtype) if tensor.is_floating_point() else tensor

    return _map(move, batch)
'''

MOVE = "tensor = tensor.to($arguments)"

MOVE_IN_FORMAT = """\
layout = torch.$format if tensor.dim() == $rank else torch.preserve_format
tensor = tensor.to($arguments, memory_format=layout)"""

ONLY_ATTENTION = '''
def _attention():
    """A context in which scaled_dot_product_attention uses one kernel only."""
    return torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.$backend)
'''

MAP = '''
def _map(function, batch):
    """The batch with ``function`` applied to every tensor in it."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: _map(function, value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_map(function, value) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_map(function, value) for value in batch)
    return batch
'''

GRAPHED = '''
def _graphed(device, run, captured, after_replay, parameters):
    """A step that is captured in a CUDA graph on its fourth call and replayed from then on.

    The first three calls run eagerly on a side stream, and are steps like any other. A batch of another shape, such
    as a short last one, runs eagerly too. See "CUDA Graphs" in PyTorch's notes on CUDA semantics.
    """
    if device.type != "cuda":
        return lambda batch: run(_to_device(batch, device))
    stream = torch.cuda.Stream(device)
    graph = static_batch = static_result = shapes = None
    calls = 0

    def tensors(batch):
        found = []
        _map(found.append, batch)
        return found

    def shapes_of(batch):
        return [(tensor.shape, tensor.dtype) for tensor in tensors(batch)]

    def run_aside(batch):
        current = torch.cuda.current_stream(device)
        stream.wait_stream(current)
        # The graph writes into the gradients that it was captured with: an eager step must not replace them.
        gradients = [parameter.grad for parameter in parameters]
        with torch.cuda.stream(stream):
            result = run(batch)
        if graph is not None:
            for parameter, gradient in zip(parameters, gradients):
                parameter.grad = gradient
        current.wait_stream(stream)
        return result

    def capture(batch):
        nonlocal graph, static_batch, static_result
        static_batch = _map(torch.clone, batch)
        for parameter in parameters:
            parameter.grad = None
        torch.cuda.synchronize(device)
        recording = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recording, capture_error_mode="thread_local"):
            static_result = captured(static_batch)
        graph = recording

    def step(batch):
        nonlocal calls, shapes
        if graph is not None and shapes_of(batch) == shapes:
            for destination, source in zip(tensors(static_batch), tensors(batch)):
                if source.dtype != destination.dtype:
                    source = source.to(device, non_blocking=True)  # converted there, not on the host
                destination.copy_(source, non_blocking=True)
        else:
            calls += 1
            moved = _to_device(batch, device)
            if graph is not None or calls <= 3:
                return run_aside(moved)
            capture(moved)
            shapes = shapes_of(batch)
        graph.replay()
        after_replay()
        # The next replay overwrites the graph's own result.
        return _map(torch.clone, static_result)

    return step
'''
