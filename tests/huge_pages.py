"""Memory in huge pages, so that this process is forked in a third of the time.

A fork copies an entry for each page of memory, and the end of the fork looks at each again: 30 ms of processor time for
what PyTorch's import leaves, 10 ms once that is in pages of 2 MB. Hundreds of tests start a worker or a trial.
"""

import ctypes
from collections.abc import Iterator
from pathlib import Path

_SIZE = 2 << 20
_COLLAPSE = 25  # MADV_COLLAPSE of madvise(2), Linux 6.1; older kernels refuse it


def use_huge_pages() -> None:
    """Move what this process has allocated into huge pages, where the system can."""
    madvise = ctypes.CDLL(None).madvise
    for begin, end in _allocated():
        for address in range(-(-begin // _SIZE) * _SIZE, end - _SIZE + 1, _SIZE):
            madvise(ctypes.c_void_p(address), ctypes.c_size_t(_SIZE), _COLLAPSE)


def _allocated() -> Iterator[tuple[int, int]]:
    """The first and last addresses of the heap and of other memory that no file stands behind; none but on Linux."""
    maps = Path("/proc/self/maps")
    for line in maps.read_text(encoding="utf-8").splitlines() if maps.exists() else ():
        addresses, permissions, *_, inode = (fields := line.split())[:5]
        if permissions == "rw-p" and inode == "0" and fields[5:] in ([], ["[heap]"]):
            begin, end = addresses.split("-")
            yield int(begin, 16), int(end, 16)
