"""A DataLoader that reads the samples of a batch at once: one indexing of each array, in place of one a sample."""

import ast
import copy
import functools
import inspect
import sys
import textwrap
import types
import typing

import torch

from advisor.step.loader_epochs import READS_WITH
from advisor.step.loaders import is_rebuilt_later, loader_with

# Methods of tensors and functions of PyTorch that do the same to each sample, be it alone or among others.
METHODS = {"float", "double", "half", "bfloat16", "long", "int", "bool", "clone", "contiguous"}
PYTORCHS_FUNCTIONS = {"tensor", "as_tensor", "from_numpy"}
# Kinds of numbers that NumPy and PyTorch share: booleans, integers, floats and complex numbers.
KINDS = "biufc"
NUMPYS_TYPES = {"bool", "uint8", "int16", "int32", "int64", "float32", "float64"}
DOES_MORE = "does more in its __getitem__ than to index the arrays that it holds"


class ReadsAtOnce:
    """Makes a dataset one that DataLoader asks for whole batches: the first base of a class beside the owner's.

    A loader's iterators have it in place of the dataset as its owner made it, which stays the loader's. They share
    their attributes. A batch that cannot be read at once is read sample by sample, as after the owner put something
    else into the dataset.
    """

    owners_class: typing.ClassVar[type]

    def __getitems__(self, indices: list[typing.Any]) -> typing.Any:
        """A :class:`WholeBatch`, or samples for the loader's ``collate_fn``."""
        dataset = as_its_owner_made_it(self)
        try:
            return WholeBatch(read_at_once(dataset, indices))
        except (ValueError, IndexError, TypeError):
            return [dataset[index] for index in indices]

    def __reduce__(self) -> typing.Any:
        return at_once, (as_its_owner_made_it(self),)

    def __copy__(self) -> typing.Any:
        return at_once(copy.copy(as_its_owner_made_it(self)))


def at_once(dataset: typing.Any) -> typing.Any:
    """The dataset as one that reads whole batches: of a class derived from its own, with the attributes in common."""
    owners: typing.Any = type(dataset)
    reads = object.__new__(class_at_once(owners))
    reads.__dict__ = dataset.__dict__
    return reads


@functools.cache
def class_at_once(owners: type) -> typing.Any:
    """The class of a dataset, with :class:`ReadsAtOnce`."""
    names = {"__module__": owners.__module__, "__qualname__": owners.__qualname__, "owners_class": owners}
    return types.new_class(owners.__name__, (ReadsAtOnce, owners), exec_body=lambda held: held.update(names))


def as_its_owner_made_it(reads: typing.Any) -> typing.Any:
    """The dataset without :class:`ReadsAtOnce`; attributes that are set in one are set in the other."""
    dataset = object.__new__(reads.owners_class)
    dataset.__dict__ = reads.__dict__
    return dataset


class Samples:
    """A tensor that gives the samples of an array of numbers as :func:`samples_of` reads them."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __getitem__(self, index: typing.Any) -> torch.Tensor:
        return samples_of(self.tensor, torch.from_numpy(index))


class WholeBatch:
    """A batch that needs no collating."""

    def __init__(self, batch: typing.Any) -> None:
        self.batch = batch


def collate_samples(samples: typing.Any) -> typing.Any:
    """A ``collate_fn`` that lets whole batches pass."""
    return samples.batch if isinstance(samples, WholeBatch) else torch.utils.data.default_collate(samples)


def with_batched_reads(loader: typing.Any) -> typing.Any:
    """A loader of the same dataset that reads each batch at once. Raises ValueError where that is not the same."""
    if hasattr(loader, READS_WITH):
        return loader
    refuse_other_batches(loader)
    return loader_with(loader, **{READS_WITH: reading_at_once})


def reading_at_once(loader: typing.Any) -> dict[str, typing.Any]:
    """The options of an iterator that reads batches at once; none after its owner made the loader another one."""
    return {} if why_one_by_one(loader) else {"dataset": at_once(loader.dataset), "collate_fn": collate_samples}


def refuse_other_batches(loader: typing.Any) -> None:
    """Raise ValueError, with the reason, unless a loader's batches can be read at once with the same contents."""
    if reason := why_one_by_one(loader):
        raise ValueError(reason)
    if is_rebuilt_later(loader):
        raise ValueError("Accelerate builds the loader anew, sample by sample: prepare it with Accelerate first")
    others = [one for one in vars(loader).values() if isinstance(one, torch.utils.data.DataLoader)]
    if any(one.dataset is not loader.dataset or one.collate_fn is not loader.collate_fn for one in others):
        raise ValueError("the loader holds another one, which reads other samples")
    some = some_samples(loader.dataset)
    together = read_at_once(loader.dataset, some)
    if not same_batches(together, loader.collate_fn([loader.dataset[index] for index in some])):
        raise ValueError("the dataset's samples are other numbers one by one than together")


def why_one_by_one(loader: typing.Any) -> str:
    """The reason that a loader has to read its samples one by one; empty where its dataset decides on that."""
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return "the dataset is iterable: no sample can be asked for"
    if loader.batch_sampler is None:
        return "the loader does not form batches (batch_size=None)"
    if loader.collate_fn is not torch.utils.data.default_collate:
        return "the loader has a collate_fn of its own, which decides the form of a batch"
    if hasattr(within_subsets(loader.dataset), "__getitems__"):
        return "the dataset reads batches at once itself (__getitems__)"
    return ""


def within_subsets(dataset: typing.Any) -> typing.Any:
    """The dataset inside any number of ``Subset``."""
    return within_subsets(dataset.dataset) if type(dataset) is torch.utils.data.Subset else dataset


def some_samples(dataset: typing.Any) -> list[int]:
    """The indices of the first sample, the last, and one between. Raises ValueError for an empty dataset."""
    try:
        count = len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise ValueError("the dataset does not know how many samples it has") from error
    if not count:
        raise ValueError("the dataset has no samples")
    return sorted({0, count // 2, count - 1})


def same_batches(one: typing.Any, other: typing.Any) -> bool:
    """Whether two batches are alike in all: containers, types, shapes and each number."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same_batches(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_batches, one, other))
    if (one.dtype, one.shape, one.stride(), one.device) != (other.dtype, other.shape, other.stride(), other.device):
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def read_at_once(dataset: typing.Any, indices: list[typing.Any]) -> typing.Any:
    """The batch of these samples. Raises ValueError where the dataset or the indices are of another kind."""
    while type(dataset) is torch.utils.data.Subset:
        indices = [dataset.indices[index] for index in indices]
        dataset = dataset.dataset
    index = torch.as_tensor(indices)
    if index.dtype != torch.int64 or index.dim() != 1:
        raise ValueError("the sampler gives something else than one number for each sample")
    if type(dataset) is torch.utils.data.TensorDataset:
        if not all(is_indexed_by_sample(tensor) for tensor in dataset.tensors):
            raise ValueError("the dataset holds tensors of a special kind")
        return [samples_of(tensor, index) for tensor in dataset.tensors]
    kind: typing.Any = type(dataset)
    arrays, constants = reads_of(kind, getattr(getattr(kind, "__getitem__", None), "__code__", None))
    held = vars(dataset)
    for name in arrays:
        if name not in held or not is_indexed_by_sample(held[name]):
            raise ValueError(f"{kind.__name__}.{name} is neither a plain tensor nor a NumPy array")
    if any(name not in held or held[name] is not None for name in constants):
        raise ValueError(f"{kind.__name__} {DOES_MORE}")
    read = object.__new__(kind)
    read.__dict__ = {**held, **{name: Samples(held[name]) for name in arrays if type(held[name]) is torch.Tensor}}
    return collated(read[index.numpy()])


def samples_of(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Several samples of a tensor, read by this thread alone.

    PyTorch would share a batch among as many threads as there are cores, and wait for the last of them: milliseconds
    wherever another process has one of the cores.
    """
    if tensor.device.type != "cpu" or str(tensor.dtype).removeprefix("torch.") not in NUMPYS_TYPES:
        return tensor[index]
    return torch.from_numpy(tensor.numpy().take(index.numpy(), axis=0))


def is_indexed_by_sample(array: typing.Any) -> bool:
    """Whether an array's first dimension is that of samples, and several of them are read as one is."""
    if type(array) is torch.Tensor:
        return array.layout == torch.strided and array.is_contiguous() and array.dim() > 0 and not array.requires_grad
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(array) in (numpy.ndarray, numpy.memmap) and array.dtype.kind in KINDS


def collated(samples: typing.Any) -> typing.Any:
    """The batch that PyTorch's ``default_collate`` would make of samples that were read together."""
    if isinstance(samples, dict):
        return {key: collated(value) for key, value in samples.items()}
    if isinstance(samples, (tuple, list)):
        return [collated(part) for part in samples]
    return torch.as_tensor(samples)


@functools.cache
def reads_of(kind: type, code: types.CodeType | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The attributes whose samples a class of datasets gives back, and those that have to be None for that.

    ``code`` is that of its ``__getitem__``, which may become another one, as where a notebook reloads a module.
    Its ``__getitem__`` is read, not run: it does nothing but index arrays by the number of the sample, so an array of
    numbers gives the samples together. Raises ValueError where it does anything else.
    """
    method = inspect.getattr_static(kind, "__getitem__", None)
    usual = inspect.getattr_static(kind, "__getattribute__") is vars(object)["__getattribute__"]
    if not isinstance(method, types.FunctionType) or hasattr(method, "__wrapped__") or not usual:
        raise ValueError(f"{kind.__name__} {DOES_MORE}")
    try:
        (written,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    except (OSError, TypeError, SyntaxError, ValueError) as error:
        raise ValueError(f"the source of {kind.__name__}.__getitem__ cannot be read") from error
    reading = Reading(kind, method)
    if not isinstance(written, ast.FunctionDef) or not reading.understands(written):
        raise ValueError(f"{kind.__name__} {DOES_MORE}")
    return tuple(reading.arrays), tuple(reading.constants)


class Reading:
    """A ``__getitem__`` that is being read: the ``arrays`` that it indexes, and the ``constants`` that it asks for."""

    def __init__(self, kind: type, method: types.FunctionType) -> None:
        self.kind = kind
        self.has_torch = method.__globals__.get("torch") is torch
        self.names: list[str] = []
        self.bound: set[str] = set()
        self.arrays: dict[str, None] = {}
        self.constants: dict[str, None] = {}

    def understands(self, function: ast.FunctionDef) -> bool:
        """Whether each statement does the same to several samples as to each of them."""
        arguments = function.args
        self.names = [argument.arg for argument in arguments.args]
        others = (arguments.vararg, arguments.kwarg, *arguments.kwonlyargs, *arguments.posonlyargs)
        if len(self.names) != 2 or any(others) or function.decorator_list:
            return False
        *statements, last = function.body
        return all(map(self.is_plain, statements)) and isinstance(last, ast.Return) and self.is_result(last.value)

    def is_plain(self, statement: ast.stmt) -> bool:
        """Whether a statement is a docstring, gives a name to samples, or is not run as long as something is None."""
        if isinstance(statement, ast.Expr):
            return isinstance(statement.value, ast.Constant)
        if isinstance(statement, ast.If):
            return not statement.orelse and self.is_off(statement.test)
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        (target,), value = statement.targets, statement.value
        targets, values = [target], [value]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            targets, values = target.elts, value.elts
        names = [one.id for one in targets if isinstance(one, ast.Name) and one.id not in self.names]
        if len(names) != len(targets) or len(names) != len(values) or not all(map(self.is_sample, values)):
            return False
        self.bound.update(names)
        return True

    def is_off(self, test: ast.expr) -> bool:
        """Whether a test asks for an attribute, such as a transform, and fails where that is None."""
        if isinstance(test, ast.Compare):
            (operator, *_), (other, *more) = test.ops, test.comparators
            none = isinstance(other, ast.Constant) and other.value is None
            if more or not none or not isinstance(operator, ast.IsNot):
                return False
            test = test.left
        name = self.attribute(test)
        if name:
            self.constants[name] = None
        return bool(name)

    def is_result(self, value: ast.expr | None) -> bool:
        """Whether a value is made of samples: one, or a tuple, a list or a dict of them."""
        if isinstance(value, (ast.Tuple, ast.List)):
            return bool(value.elts) and all(map(self.is_result, value.elts))
        if isinstance(value, ast.Dict):
            keys = all(isinstance(key, ast.Constant) for key in value.keys)
            return bool(value.keys) and keys and all(map(self.is_result, value.values))
        return value is not None and self.is_sample(value)

    def is_sample(self, value: ast.expr) -> bool:
        """Whether a value is a sample of an array, or the same numbers as PyTorch collates them."""
        if isinstance(value, ast.Name):
            return value.id in self.bound
        if isinstance(value, ast.Subscript):
            name = self.attribute(value.value)
            if not name or not isinstance(value.slice, ast.Name) or value.slice.id != self.names[1]:
                return False
            self.arrays[name] = None
            return True
        if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
            return False
        of_torch = isinstance(value.func.value, ast.Name) and value.func.value.id == "torch" and self.has_torch
        if of_torch:
            names = (
                len(value.args) == 1
                and value.func.attr in PYTORCHS_FUNCTIONS
                and all(map(self.is_type, value.keywords))
            )
            return names and self.is_sample(value.args[0])
        bare = not value.args and not value.keywords and value.func.attr in METHODS
        return bare and self.is_sample(value.func.value)

    def is_type(self, keyword: ast.keyword) -> bool:
        """Whether an argument names a type of numbers, as ``dtype=torch.float32``."""
        value = keyword.value
        of_torch = isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == "torch"
        return keyword.arg == "dtype" and of_torch

    def attribute(self, value: ast.expr) -> str:
        """The name of an attribute of the dataset's own, not a property of its class; empty for anything else."""
        of_self = isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name)
        if not of_self or typing.cast("typing.Any", value).value.id != self.names[0]:
            return ""
        name = str(typing.cast("ast.Attribute", value).attr)
        return "" if hasattr(inspect.getattr_static(self.kind, name, None), "__set__") else name
