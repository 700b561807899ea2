"""The template of the exported Python file: its functions and the class of its step, as they stand there.

A line that ends in ``#?`` and words is written where all of them hold; ``!word`` where one does not. Words in capitals
between ``<`` and ``>`` are expressions, or lines, that depend on the workload.
"""

from collections.abc import Collection, Mapping

CONSTANTS = """
MOST_GRAPHS = 8  # each takes memory; batches of other shapes run as usual
WARM_UP = <WARM_UP>  # steps of a shape before its graph is recorded
NUMBERS = ("weight_decay", "momentum", "betas")  # a graph holds them as they were  #? inside
"""
ON_DEVICE = '''
def on_device(part, device):
    """A part of a batch on the device, as the model takes it."""
    if isinstance(part, dict):  #? nested
        return {name: on_device(value, device) for name, value in part.items()}  #? nested
    if isinstance(part, (list, tuple)):  #? nested
        return [on_device(value, device) for value in part]  #? nested
    if not isinstance(part, torch.Tensor):  #? nested
        return part  #? nested
    part = part.to(device<WAITS>)
    if part.dim() == <RANK>:  #? memory_format
        part = part.contiguous(memory_format=torch.<MEMORY_FORMAT>)  #? memory_format
    if part.is_floating_point():  #? input_dtype
        part = part.to(torch.<INPUT_DTYPE>)  #? input_dtype
    return part
'''
TENSORS_OF = '''
def tensors_of(part):
    """The tensors in a part of a batch."""
    if isinstance(part, (dict, list, tuple)):
        values = part.values() if isinstance(part, dict) else part
        return [tensor for value in values for tensor in tensors_of(value)]
    return [part] if isinstance(part, torch.Tensor) else []
'''
COPIED = '''
def copied(value):
    """A copy of the tensors in a value."""
    if isinstance(value, dict):
        return type(value)({name: copied(part) for name, part in value.items()})
    if isinstance(value, (list, tuple)):
        return type(value)([copied(part) for part in value])
    return value.clone() if isinstance(value, torch.Tensor) else value
'''
OPTIMIZERS_OF = '''
def optimizers_of(step):
    """The optimizers that the step names, and those in the attributes of what it names."""
    function = step if hasattr(step, "__code__") else step.__call__
    names = inspect.getclosurevars(function)
    near = [getattr(function, "__self__", None), *names.nonlocals.values(), *names.globals.values()]
    near += [value for one in near for value in getattr(one, "__dict__", {}).values()]
    return list({id(one): one for one in near if isinstance(one, torch.optim.Optimizer)}.values())
'''
CAPTURABLE = '''
def make_capturable(optimizer):
    """Have the optimizer read its step counts and learning rates on the device."""
    for group in optimizer.param_groups:
        if "capturable" not in group:  # a graph holds its learning rate as it was  #? own
            continue  #? own
        rate = torch.tensor(float(group["lr"]), device=group["params"][0].device)
        group.update(<OPTIONS>, lr=rate)
    optimizer.load_state_dict(optimizer.state_dict())  # moves the counts of earlier steps
'''
DEVICE_LOADER = '''
class DeviceLoader:
    """A loader whose next batch is copied to the device while the present one is computed on."""

    def __init__(self, loader, device):
        self.loader, self.device = loader, device

    def __len__(self):
        return len(self.loader)

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def __iter__(self):
        computing, copying = torch.cuda.current_stream(self.device), torch.cuda.Stream(self.device)
        ready = []
        for batch in self.loader:
            copying.wait_stream(computing)  # memory that was given back may still be read
            with torch.cuda.stream(copying):
                coming = <MOVED>
            yield from ready
            computing.wait_stream(copying)
            ready = [coming]
        yield from ready
'''
STEP = '''
class <CLASS>:
    """step(batch) <DOES>."""

    def __init__(<TAKES>):
        self.model, self.optimizer, self.loss_fn = model, optimizer, loss_fn  #? train !own_loss
        self.model, self.optimizer = model, optimizer  # the model computes its loss  #? train own_loss
        self.model = model.eval()  #? infer
        self.step, self.model = step, model  #? own
        self.device = next(model.parameters()).device
        self.optimizers = optimizers_of(step)  #? own inside
        self.scaler = torch.amp.GradScaler(self.device.type)  #? scaler
        self.batches = 0  #? counts
        self.loss_sum = 0.0  #? loss_sum
        self.compiled = torch.compile(<COMPILED_LOSS>)  #? compiles_loss
        self.compiled_update = torch.compile(optimizer.step)  #? compiles_update
        self.stream, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()  #? graph
        self.recapture()  #? graph

    def loss(self, batch):  #? train
        <LOSS>  #? train
<>  #? train
    def run(self, batch):  #? graph
    def __call__(self, batch):  #? !graph
        batch = <MOVED>  #? !graph
        torch.compiler.cudagraph_mark_step_begin()  #? copies
        <CALL>  #? !train
        <ZERO_GRAD>  #? train
        loss = self.loss(batch)  #? train !compiles_loss
        loss = self.compiled(batch)  #? train compiles_loss
        <BACKWARD>  #? train
        self.batches += 1  #? train counts
        <UPDATE>  #? train !apart
        del batch  #? deletes !graph
        <AFTER>  #? train after !graph
        return loss.detach()<CLONE>  #? train
'''
GRAPH = '''
    def recapture(self):
        """Forget the graphs: after a change that they do not follow."""
        make_capturable(self.optimizer)  #? train inside
        self.groups = self.optimizer.param_groups  #? train inside
        for optimizer in self.optimizers:  #? own inside
            make_capturable(optimizer)  #? own inside
        self.groups = [group for one in self.optimizers for group in one.param_groups]  #? own inside
        self.rates = [group["lr"] for group in self.groups]  #? inside
        self.graphs, self.steps = {}, {}

    def update(self):  #? apart
        <UPDATE>  #? apart
<>  #? apart
    def __call__(self, batch):
        if self.optimizer.param_groups is not self.groups:  # a state was loaded  #? train inside
            self.recapture()  #? train inside
        for group, rate in zip(self.groups, self.rates):  #? inside
            if group["lr"] is not rate and <IS_TENSOR>:  # one was assigned  #? own inside
            if group["lr"] is not rate:  # a scheduler, or the loop, assigned a new one  #? train inside
                group["lr"] = rate.fill_(float(group["lr"]))  #? inside
        key = self.signature(batch)
        if key not in self.steps and len(self.steps) == MOST_GRAPHS:
            return self.eagerly(batch)
        self.steps[key] = self.steps.get(key, 0) + 1
        if self.steps[key] <= WARM_UP:
            return self.eagerly(batch)
        if key not in self.graphs:
            self.graphs[key] = self.record(batch)
        graph, static, result, gradients = self.graphs[key]  #? apart
        graph, static, result = self.graphs[key]  #? !apart
        for part, given in zip(<STATIC_TENSORS>, <TENSORS>):
            part.copy_(given, non_blocking=True)
        graph.replay()
        for parameter, gradient in gradients:  #? apart
            parameter.grad = gradient  #? apart
        self.update()  #? apart
        <AFTER_RESULT>  #? after
        return <RESULT>

    def signature(self, batch):
        """What decides on a graph."""
        shapes = [(part.shape, part.dtype) for part in <TENSORS>]
        trained = [parameter.requires_grad for parameter in self.model.parameters()]  #? trains
        numbers = [group.get(name) for group in self.groups for name in NUMBERS]  #? inside
        numbers += [group["lr"] for group in self.groups if isinstance(group["lr"], float)]  #? own inside
        return <KEY>

    def eagerly(self, batch):
        """A step like any other, on the stream of the graphs."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = self.run(<MOVED>)
            self.update()  #? apart
        torch.cuda.current_stream().wait_stream(self.stream)
        <AFTER_RESULT>  #? after
        return result

    def record(self, batch):
        """Record a step on a copy of the batch; it computes nothing."""
        static = <STATIC>
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, self.pool, self.stream, "thread_local"):
            result = self.run(static)
        trained = [one for one in self.model.parameters() if one.grad is not None]  #? apart
        return graph, static, result, [(one, one.grad) for one in trained]  #? apart
        return graph, static, result  #? !apart
'''


def written(text: str, words: Collection[str], expressions: Mapping[str, str]) -> str:
    """A text of the template with the lines whose words hold; an expression of several lines is indented whole."""
    lines = list[str]()
    for line in text.strip("\n").splitlines():
        code, _, condition = line.partition("  #? ")
        if not all((word.strip("!") in words) is not word.startswith("!") for word in condition.split()):
            continue
        indent = code[: len(code) - len(code.lstrip())]
        for name, expression in expressions.items():
            code = code.replace(f"<{name}>", expression.replace("\n", f"\n{indent}"))
        lines.append("" if code == "<>" else code)
    return "\n".join(lines)
