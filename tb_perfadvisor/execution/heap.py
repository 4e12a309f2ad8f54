"""Memory that columns leave behind is kept for the next ones.

A column of a large profile is some megabytes. The C library gives such a piece back to the system
as soon as it is free, and has the next one cleared page by page, which takes longer than most of
what is then done with it. Here one column follows the other, so that the peak stays the same.
"""

from __future__ import annotations

# Of glibc's mallopt(3): at what length of free memory at its end the heap is cut, how many pieces
# may lie outside of it, and how many heaps threads may have.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_MOST_FREE_BYTES = 1 << 28


def keep_freed_memory() -> None:
    """From now on in this process; nothing where the C library is another one."""
    import ctypes  # numpy imports it in any case

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_ARENA_MAX, 1)
    mallopt(_TRIM_THRESHOLD, _MOST_FREE_BYTES)
