"""A loader whose batches arrive on the device, the next one copied while the present one is computed on."""

import typing

import torch


class DeviceLoader:
    """Yields what ``move`` makes of a loader's batches: a copy of each on the device.

    With ``ahead`` the next batch is copied on a CUDA stream of its own while the present one is computed on; elsewhere
    than on CUDA there is no such stream and nothing runs ahead. ``move`` must not wait for the device. Attributes are
    those of the loader, read or set, so ``len``, ``loader.sampler``, ``loader.epoch = 3`` and the like work as before.
    """

    def __init__(
        self,
        loader: typing.Any,
        device: torch.device,
        move: typing.Callable[[typing.Any], typing.Any],
        ahead: bool,
    ) -> None:
        self.loader = loader
        self.device = device
        self.move = move
        self.ahead = ahead and device.type == "cuda"
        # One for all epochs: memory that is freed stays with the stream it was allocated on.
        self.stream = torch.cuda.Stream(device) if self.ahead else None

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> typing.Any:
        if name == "loader":  # not there yet while the object is copied or unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __setattr__(self, name: str, value: typing.Any) -> None:
        if name in ("loader", "device", "move", "ahead", "stream"):
            object.__setattr__(self, name, value)
        else:
            setattr(self.loader, name, value)

    def __iter__(self) -> typing.Iterator[typing.Any]:
        return map(self.move, self.loader) if self.stream is None else self.copied_ahead(self.stream)

    def copied_ahead(self, stream: torch.cuda.Stream) -> typing.Iterator[typing.Any]:
        """The batches, each copied before the one ahead of it is given out."""
        batches = iter(self.loader)
        upcoming, failure = self.copy_of_next(batches, stream)
        while upcoming:
            ready = upcoming.pop()
            torch.cuda.current_stream(self.device).wait_stream(stream)
            if failure is None:
                upcoming, failure = self.copy_of_next(batches, stream)
            yield ready
            del ready  # its memory may go to the batch after the next one
        if failure is not None:
            raise failure

    def copy_of_next(
        self, batches: typing.Iterator[typing.Any], stream: torch.cuda.Stream
    ) -> tuple[list[typing.Any], Exception | None]:
        """The next batch in a list, its copy under way; an empty list at the end, and what the loader raised."""
        try:
            batch = next(batches)
        except StopIteration:
            return [], None
        except Exception as error:  # it belongs to the batch after the one that is ready: that one comes first
            return [], error
        # Memory that an earlier batch gave back may still be read by a step that is under way.
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            return [self.move(batch)], None
