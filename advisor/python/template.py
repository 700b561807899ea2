"""The template of the exported Python file: its header, its functions and the class of its step, as they stand there.

A line that ends in ``#?`` and words is written, with the block that it opens, where all of them hold; ``!word`` where
one does not. Where the words after ``#=`` do not hold, the block stands alone, one level further out. Names in capitals
between ``<`` and ``>`` are expressions, or lines, that depend on the workload; one that is not empty is a word too.
"""

HEADER = """
<MEASURED>

<SETTINGS>

    model, optimizer, loader = prepare(model, optimizer, loader)  # on the device already  #? train
    step = train_step(model, optimizer, loss_fn)  # loss_fn(output, target)  #? output_target_loss
    step = train_step(model, optimizer, loss_fn)  # loss_fn(model, batch)  #? model_batch_loss
    step = train_step(model, optimizer)  # the model computes its loss  #? own_loss
    model, _, loader = prepare(model, loader=loader)  # on the device already  #? infer
    step = infer_step(model)  #? infer
    model, optimizer, loader = prepare(model, optimizer, loader)  # each model of several  #? own
    step = own_step(step, model)  #? own
    for batch in loader:
        <RESULT> = step(batch)

A checkpoint also needs step.scaler.state_dict().  #? scaler

A graph repeats Python numbers as they were when it was recorded; learning rates are followed. When  #? graph
another number changes that the model or the loss reads, or a checkpoint was loaded, call  #? graph
step.recapture().  #? graph
"""
CONSTANTS = """
MOST_GRAPHS = 8  # each takes memory; batches of other shapes run as usual  #? graph
WARM_UP = <WARM_UP>  # steps of a shape before its graph is recorded  #? graph
NUMBERS = ("weight_decay", "momentum", "betas")  # a graph holds them as they were  #? inside
"""
FUNCTIONS = '''
def on_device(part, device):
    """A tensor of a batch on the device, as the model takes it."""
    part = part.to(device<HOW>)
    if part.dim() == <RANK>:  #? memory_format
        part = part.contiguous(memory_format=torch.<MEMORY_FORMAT>)
    if part.is_floating_point():  #? input_dtype
        part = part.to(torch.<INPUT_DTYPE>)
    return part


def recording():
    """Whether a graph is recorded, for code that asks: it goes the same way in the steps before."""
    return True


def is_called_causal(mask, is_causal=None, size=None):
    """In place of PyTorch's own, which reads the mask's values; it only chooses a kernel."""
    return is_causal is True


def tensors_of(part):
    """The tensors in a part of a batch."""
    if isinstance(part, (dict, list, tuple)):
        values = part.values() if isinstance(part, dict) else part
        return [tensor for value in values for tensor in tensors_of(value)]
    return [part] if isinstance(part, torch.Tensor) else []


def on_tensors(function, value):
    """The value with the function's result in place of each tensor in it."""
    if isinstance(value, dict):
        return type(value)({name: on_tensors(function, part) for name, part in value.items()})
    if isinstance(value, (list, tuple)):
        return type(value)([on_tensors(function, part) for part in value])
    return function(value) if isinstance(value, torch.Tensor) else value


def optimizers_of(step):
    """The optimizers that the step names, and those in the attributes of what it names."""
    function = step if hasattr(step, "__code__") else step.__call__
    names = inspect.getclosurevars(function)
    near = [getattr(function, "__self__", None), *names.nonlocals.values(), *names.globals.values()]
    near += [value for one in near for value in getattr(one, "__dict__", {}).values()]
    return list({id(one): one for one in near if isinstance(one, torch.optim.Optimizer)}.values())


def make_capturable(optimizer):
    """Have the optimizer read its step counts and learning rates on the device."""
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
        elif not group.get("fused"):  # it reads its learning rate on the host  #? !compile_optimizer
            continue
        group["lr"] = torch.tensor(float(group["lr"]), device=group["params"][0].device)
    optimizer.load_state_dict(optimizer.state_dict())  # moves the counts of earlier steps


def normalizing(step, device):
    """A normalisation whose numbers are on the device; torchvision's copies them for each batch."""
    mean, std = (torch.tensor(one, device=device)[:, None, None] for one in (step.mean, step.std))
    return lambda images: (images - mean) / std


def take_transforms(dataset, device):
    """Take the last transforms out of a dataset; it has <LAST> that can run on whole batches."""
    if not hasattr(dataset, "transform"):  # it is a part of the dataset that has them
        return take_transforms(dataset.dataset, device)
    steps = list(getattr(dataset.transform, "transforms", [dataset.transform]))
    rest = steps[:-<LAST>]
    dataset.transform = type(dataset.transform)(rest) if rest else torch.nn.Identity()
    if hasattr(dataset, "transforms"):  # torchvision's datasets hold it twice
        dataset.transforms.transform = dataset.transform
    return [normalizing(step, device) if hasattr(step, "mean") else step for step in steps[-<LAST>:]]


def transformed(batch, transforms):
    """The batch with its images, the first tensor of four dimensions or more, transformed."""
    if isinstance(batch, torch.Tensor):
        for transform in transforms:
            batch = transform(batch)
        return batch
    parts = dict(batch) if isinstance(batch, dict) else dict(enumerate(batch))
    images = next(name for name, part in parts.items() if getattr(part, "ndim", 0) > 3)
    parts[images] = transformed(parts[images], transforms)
    return parts if isinstance(batch, dict) else list(parts.values())


class DeviceLoader:
    """A loader whose next batch is copied to the device while the present one is computed on."""  #? device_prefetch
    """A loader whose batches are copied to the device and transformed there."""  #? !device_prefetch

    def __init__(self, loader, device):  #? !last
        self.loader, self.device = loader, device

    def __init__(self, loader, device, transforms):  #? last
        self.loader, self.device, self.transforms = loader, device, transforms

    def __len__(self):
        return len(self.loader)

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def __iter__(self):  #? !device_prefetch
        for batch in self.loader:
            yield transformed(<MOVED>, self.transforms)

    def __iter__(self):  #? device_prefetch
        computing, copying = torch.cuda.current_stream(self.device), torch.cuda.Stream(self.device)
        ready = []
        for batch in self.loader:
            copying.wait_stream(computing)  # memory that was given back may still be read
            with torch.cuda.stream(copying):
                coming = <MOVED>  #? !last
                coming = transformed(<MOVED>, self.transforms)  #? last
            yield from ready
            computing.wait_stream(copying)
            ready = [coming]
        yield from ready
'''
PREPARE = '''
def prepare(model, optimizer=None, loader=None):
    """Return what the loop goes on with."""
    device = next(model.parameters()).device  #? device
    <GLOBALS>
    if optimizer is not None:  # of several models, one may have none of its own  #= own optimizer
        <OPTIMIZER>
    transforms = take_transforms(loader.dataset, device)  #? last
    <LOADER>
    torch._inductor.config.freezing = True  #? freezing
    torch._functorch.config.enable_autograd_cache = False  # it confuses attention kernels  #? compiles with_attention
    torch.nn.modules.transformer._detect_is_causal_mask = is_called_causal  #? graph transformer
    for block in model.modules():  #? blocks
        if type(block).__name__ in <BLOCKS>:
            block.compile(<COMPILED_WITH>)
    model.compile(<COMPILED_WITH>)  #? compiles !compiles_loss !regional !pointwise
    if torch.distributed.is_initialized():  # under torchrun; each rank needs its part of the data  #? ddp
        <DDP>
    <OTHERS>
    loader = DeviceLoader(loader, device)  #? device_prefetch !last
    loader = DeviceLoader(loader, device, transforms)  #? last
    return model, optimizer, loader
'''
UPDATE = """
if self.batches % <ACCUMULATE> == 0:  #= accumulate
    self.scaler.unscale_(self.optimizer)  #? scaler clip_norm
    torch.nn.utils.clip_grad_norm_(self.model.parameters(), <CLIP_NORM>)  #? clip_norm
    self.scaler.step(self.optimizer)  #? scaler
    self.scaler.update()  #? scaler
    self.compiled_update()  #? compile_optimizer
    self.optimizer.step()  #? !scaler !compile_optimizer
"""
STEP = '''
class <CLASS>:
    """step(batch) <DOES>."""

    def __init__(self, <TAKES>):
        self.model, self.optimizer, self.loss_fn = model, optimizer, loss_fn  #? train
        self.model = model.eval()  #? infer
        self.step, self.model = step, model  #? own
        self.device = next(model.parameters()).device
        self.scaler = torch.amp.GradScaler(self.device.type)  #? scaler
        self.batches = 0  #? accumulate
        self.compiled = torch.compile(<COMPILED_LOSS>)  #? compiles_loss
        make_capturable(optimizer)  #? train compile_optimizer
        self.compiled_update = torch.compile(optimizer.step)  #? train compile_optimizer
        self.optimizers = [optimizer]  #? train inside
        self.optimizers = optimizers_of(step)  #? own inside
        self.stream, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()  #? graph
        self.recapture()  #? graph

    def loss(self, batch):  #? train
        <WITH>  #= with
            <CALL>  #? !model_batch_loss
            return self.loss_fn(output<TARGET>)  #? output_target_loss
            return self.loss_fn(self.model<TARGET>)  #? model_batch_loss
            return <OWN_LOSS>  #? own_loss

    def <RUN>(self, batch):
        batch = <MOVED>  #? !graph
        torch.compiler.cudagraph_mark_step_begin()  #? copies
        <WITH>  #= !train with
            <CALL>  #? !train
        return on_tensors(torch.clone, output)  #? !train copies
        if self.batches % <ACCUMULATE> == 0:  #= accumulate
            for parameter in self.model.parameters():  #? train manual
                parameter.grad = None
            self.optimizer.zero_grad(<SET_TO_NONE>)  #? train !manual
        loss = self.loss(batch)  #? train !compiles_loss
        loss = self.compiled(batch)  #? train compiles_loss
        <WITH_ATTENTION>  #= train with_attention
            <LOSS>.backward()  #? train
        self.batches += 1  #? accumulate
        <UPDATE>  #? train !apart
        return loss.detach()<CLONE>  #? train

    def recapture(self):  #? graph
        """Forget the graphs: after a change that they do not follow."""
        for optimizer in self.optimizers:  #? inside
            make_capturable(optimizer)
        self.groups = [group for one in self.optimizers for group in one.param_groups]  #? inside
        self.rates = [group["lr"] for group in self.groups]  #? inside
        self.graphs, self.steps = {}, {}

    def update(self):  #? apart
        <UPDATE>

    def __call__(self, batch):  #? graph
        groups = [group for one in self.optimizers for group in one.param_groups]  #? inside
        if any(one is not other for one, other in zip(groups, self.groups)):  # a state was loaded  #? inside
            self.recapture()
        for group, rate in zip(self.groups, self.rates):  #? inside
            if group["lr"] is not rate and isinstance(rate, torch.Tensor):  # a new one was assigned
                group["lr"] = rate.fill_(float(group["lr"]))
        key = self.signature(batch)
        if key in self.steps or len(self.steps) < MOST_GRAPHS:
            self.steps[key] = self.steps.get(key, 0) + 1
        if self.steps.get(key, 0) <= WARM_UP:
            return self.eagerly(batch)
        if key not in self.graphs:
            self.graphs[key] = self.record(batch)
        graph, static, result, gradients = self.graphs[key]  #? apart
        graph, static, result = self.graphs[key]  #? !apart
        for part, given in zip(<STATIC_TENSORS>, <TENSORS>):
            part.copy_(given, non_blocking=True)
        graph.replay()
        for parameter, gradient in gradients:  #? apart
            parameter.grad = gradient
        self.update()  #? apart
        return result.clone()  #? train
        return on_tensors(torch.clone, result)  #? !train

    def signature(self, batch):  #? graph
        """The key of the graph that a batch is replayed in."""
        key = [self.model.training, *((part.shape, part.dtype) for part in <TENSORS>)]
        key += [parameter.requires_grad for parameter in self.model.parameters()]  #? !infer
        key += [group.get(name) for group in self.groups for name in NUMBERS]  #? inside
        key += [group["lr"] for group in self.groups if isinstance(group["lr"], float)]  #? own inside
        return tuple(key)

    def eagerly(self, batch):  #? graph
        """A step like any other, on the stream of the graphs."""
        self.stream.wait_stream(torch.cuda.current_stream())
        <ON_STREAM>
            result = self.run(<MOVED>)
            self.update()  #? apart
        torch.cuda.current_stream().wait_stream(self.stream)
        return result

    def record(self, batch):  #? graph
        """Record a step on a copy of the batch; it computes nothing."""
        static = <MOVED>
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, self.pool, self.stream, "thread_local"):
            result = self.run(static)
        trained = [one for one in self.model.parameters() if one.grad is not None]  #? apart
        return graph, static, result, [(one, one.grad) for one in trained]  #? apart
        return graph, static, result  #? !apart
'''
