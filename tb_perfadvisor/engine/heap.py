"""Memory that columns leave behind is kept for the next ones.

A column of a large profile is some megabytes. The C library gives such a piece back to the system
as soon as it is free, and has the next one cleared page by page, which takes longer than most of
what is then done with it. Here one column follows the other, so that the peak stays the same.
"""

from __future__ import annotations

# Of glibc's mallopt(3): at what length of free memory at its end the heap is cut, and from what
# size on a piece lies outside of it. Older versions take no more than this size.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MOST_FREE_BYTES = 1 << 28
_LARGEST_BYTES = 1 << 25


def keep_freed_memory() -> None:
    """From now on in this process; nothing where the C library is another one."""
    import ctypes  # numpy imports it in any case

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    # Setting either fixes both: the size first.
    if mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES):
        mallopt(_TRIM_THRESHOLD, _MOST_FREE_BYTES)
