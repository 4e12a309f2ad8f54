"""Numbers that two processes take from both ends, until they meet."""

from __future__ import annotations

import os
import struct
from typing import Final

_BOUNDS: Final = struct.Struct("<ii")


class TwoEnds:
    """Numbers from 0 on, each of which one process takes: this one or a fork of it."""

    def __init__(self, count: int, only_last: int = 0) -> None:
        """None is taken.

        Args:
            count: How many there are.
            only_last: How many of the highest are never the lowest that is left.

        Raises:
            OSError: When there is no shared memory.
        """
        self._first_ends = count - only_last
        self._file = os.memfd_create("tb_perfadvisor")
        os.pwrite(self._file, _BOUNDS.pack(0, count), 0)

    def __del__(self) -> None:
        """Give the memory back."""
        if hasattr(self, "_file"):
            os.close(self._file)

    def take_first(self) -> int | None:
        """The lowest number that is left, if it may be that."""
        return self._take(from_end=False)

    def take_last(self) -> int | None:
        """The highest one."""
        return self._take(from_end=True)

    def _take(self, *, from_end: bool) -> int | None:
        import fcntl  # only Linux has both this and the memory

        # Who is ended holds no lock any more.
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            first, end = _BOUNDS.unpack(os.pread(self._file, _BOUNDS.size, 0))
            if first == (end if from_end else min(end, self._first_ends)):
                return None
            left = (first, end - 1) if from_end else (first + 1, end)
            os.pwrite(self._file, _BOUNDS.pack(*left), 0)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        taken: int = end - 1 if from_end else first
        return taken
