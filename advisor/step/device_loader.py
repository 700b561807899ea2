"""A loader whose batches arrive on the device, the next one copied while the present one is computed on."""

import gc
import sys
import typing

import torch

WRAPPER_NAMES = ("loader", "device", "move", "ahead", "stream", "end_of_dataloader")


class DeviceLoader:
    """Yields a loader's batches after ``move``: a copy of each on the device.

    With ``ahead`` the next batch is copied on a CUDA stream of its own while the present one is computed on; elsewhere
    than on CUDA there is no such stream and nothing runs ahead. ``move`` must not wait for the device. Attributes are
    those of the loader, read or set, so ``len``, ``loader.sampler``, ``loader.epoch = 3`` and the like work as before.

    Where Accelerate is in use it is told when the last batch of an epoch is given out, as its own loaders tell it: it
    accumulates gradients by that. ``end_of_dataloader`` is what it reads.
    """

    def __init__(
        self, loader: typing.Any, device: torch.device, move: typing.Callable[[typing.Any], typing.Any], ahead: bool
    ) -> None:
        self.loader = loader
        self.device = device
        self.move = move
        self.ahead = ahead and device.type == "cuda"
        # One for all epochs: memory that is freed stays with the stream it was allocated on.
        self.stream = torch.cuda.Stream(device) if self.ahead else None
        self.end_of_dataloader = False

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> typing.Any:
        if name in WRAPPER_NAMES:  # not there yet while the object is copied or unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __setattr__(self, name: str, value: typing.Any) -> None:
        if name in WRAPPER_NAMES:
            object.__setattr__(self, name, value)
        else:
            setattr(self.loader, name, value)

    @property
    def remainder(self) -> int:
        """The number of samples of the last batch that Accelerate keeps of what it gathers; 0 for all of them."""
        return getattr(self.loader, "remainder", 0)

    def __iter__(self) -> typing.Iterator[typing.Any]:
        state = gradient_state()
        if state is not None and not hasattr(self.loader, "gradient_state"):
            refuse_many_processes(self.loader)
        if state is None:
            return map(self.move, self.loader) if self.stream is None else self.one_ahead()
        return self.announced(state)

    def announced(self, state: typing.Any) -> typing.Iterator[typing.Any]:
        """The batches, while this is the loader that Accelerate looks at."""
        began = False
        try:
            for batch in self.one_ahead():
                if not began:  # a loader of Accelerate's inside has begun by now, and would be in front
                    state._add_dataloader(self)
                    began = True
                yield batch
        finally:
            state._remove_dataloader(self)

    def one_ahead(self) -> typing.Iterator[typing.Any]:
        """The batches, each copied before the one ahead of it is given out."""
        batches = iter(self.loader)
        self.end_of_dataloader = False
        upcoming, failure = self.copy_of_next(batches)
        while upcoming:
            ready = upcoming.pop()
            if self.stream is not None:
                torch.cuda.current_stream(self.device).wait_stream(self.stream)
            if failure is None:
                upcoming, failure = self.copy_of_next(batches)
            self.end_of_dataloader = not upcoming and failure is None
            yield ready
            del ready  # its memory may go to the batch after the next one
        if failure is not None:
            raise failure

    def copy_of_next(self, batches: typing.Iterator[typing.Any]) -> tuple[list[typing.Any], Exception | None]:
        """The next batch in a list, its copy under way, and the loader's error; an empty list at the end."""
        try:
            batch = next(batches)
        except StopIteration:
            return [], None
        except Exception as error:  # it belongs to the batch after the one that is ready: that one comes first
            return [], error
        if self.stream is None:
            return [self.move(batch)], None
        # Memory that an earlier batch gave back may still be read by a step that is under way.
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            return [self.move(batch)], None


def gradient_state() -> typing.Any:
    """Accelerate's record of the loaders that are being read; None without an Accelerator in this process."""
    module: typing.Any = sys.modules.get("accelerate.state")
    return module.GradientState() if module is not None and module.AcceleratorState._shared_state else None


def refuse_many_processes(loader: typing.Any) -> None:
    """Raise RuntimeError where Accelerate runs several processes and nothing divides the samples among them."""
    processes = sys.modules["accelerate.state"].PartialState().num_processes
    if processes > 1 and not hasattr(loader.sampler, "num_replicas"):
        raise RuntimeError(
            f"each of the {processes} processes of Accelerate would train on all samples, for it does not divide a "
            "loader whose batches arrive on the device: prepare the loader with Accelerate before applying the settings"
        )


def refuse_fabric() -> None:
    """Raise ValueError where Lightning Fabric is in use: it sets up objects of the class DataLoader only."""
    for name in ("lightning.fabric", "lightning_fabric"):
        fabric: typing.Any = getattr(sys.modules.get(name), "Fabric", None)
        if fabric is not None and any(issubclass(type(one), fabric) for one in gc.get_objects()):
            raise ValueError("Lightning Fabric's setup_dataloaders() takes nothing but a DataLoader")
