"""Kinds of events, tracks, kernels and copies, independent of any file format."""

from __future__ import annotations

from enum import IntEnum


class EventKind(IntEnum):
    """The role of an event. Readers translate their format's categories to these.

    Host kinds come first, device kinds start at 32. The union of the `BUSY_KINDS` is *device
    busy*.
    """

    OPERATOR = 0
    """A framework operator on a host thread (aten::mm, a TensorFlow op, an XLA thunk)."""
    ANNOTATION = 1
    """A range that the user or the framework named (record_function, TraceMe, NVTX)."""
    PYTHON = 2
    """A Python function frame."""
    STEP = 3
    """A step marker on the host; the `step` column has its number."""
    INPUT_WAIT = 4
    """The thread fetches from the input pipeline (DataLoader __next__, IteratorGetNext)."""
    INPUT_WORK = 5
    """Work of the input pipeline itself (tf.data iterators, loader workers)."""
    LAUNCH = 6
    """A runtime call that enqueues device work (kernel, copy, memset, graph)."""
    SYNCHRONIZE = 7
    """A runtime call that waits for the device."""
    ALLOCATE = 8
    """A runtime call that allocates or frees device memory."""
    RUNTIME = 9
    """Any other call of the device's runtime or driver."""
    COMPILE = 10
    """Tracing, lowering or compiling a program."""
    HOST_COLLECTIVE = 11
    """A collective that the host carries out (gloo, MPI, CPU rendezvous)."""
    OVERHEAD = 12
    """The profiler's own work."""
    CAPTURED_OPERATOR = 13
    """An operator of another recording, which put work into a GPU graph. It takes no time here."""
    CAPTURED_RANGE = 14
    """A module's range around such operators."""

    KERNEL = 32
    """Device compute: a GPU kernel or an XLA op on a TPU core."""
    COLLECTIVE = 33
    """Device communication, including its waiting (also `all-reduce-done` on a TPU)."""
    COPY = 34
    """A copy over a link or within a device (also `copy-done` on a TPU)."""
    MEMSET = 35
    """A fill of device memory."""
    INFEED_WAIT = 36
    """A TPU core waits in infeed or outfeed for the host."""

    DEVICE_SYNC = 48
    """A wait on the device side; never busy."""
    DEVICE_ANNOTATION = 49
    """A range projected onto the device (gpu_user_annotation, name scopes); never busy."""
    DEVICE_MODULE = 50
    """One execution of an XLA module (program), which covers its ops; never busy."""
    DEVICE_STEP = 51
    """A step on the device's own `Steps` line; never busy."""
    DEVICE_ASYNC = 52
    """A span from the start to the end of an asynchronous op (Async XLA Ops); never busy."""
    DEVICE_OP = 53
    """An XLA op derived from the kernels beneath it (GPU); never busy."""


CAPTURED_KINDS = (EventKind.CAPTURED_OPERATOR, EventKind.CAPTURED_RANGE)
"""Kinds of events that did not happen in the recording, and take no time."""
FIRST_DEVICE_KIND = EventKind.KERNEL
BUSY_KINDS = (
    EventKind.KERNEL,
    EventKind.COLLECTIVE,
    EventKind.COPY,
    EventKind.MEMSET,
)
"""Kinds whose union is device busy. The device is idle during `INFEED_WAIT`."""


class TrackKind(IntEnum):
    """What the events of a track ran on."""

    HOST_THREAD = 0
    DEVICE_STREAM = 1
    """A GPU stream, or a TPU core's op line: real work."""
    DEVICE_LINE = 2
    """A derived line of a device (modules, steps, name scopes, asynchronous spans)."""


class Precision(IntEnum):
    """Width of the numbers that a kernel computes with: the narrowest of its inputs."""

    UNKNOWN = 0
    BITS_8 = 1
    BITS_16 = 2
    BITS_32 = 3
    """fp32 and tf32, which both read and write 32-bit numbers."""
    BITS_64 = 4


class KernelFamily(IntEnum):
    """What a kernel computes."""

    OTHER = 0
    MATMUL = 1
    CONVOLUTION = 2
    ATTENTION = 3
    NORMALIZATION = 4
    SOFTMAX = 5
    ELEMENTWISE = 6
    REDUCTION = 7
    EMBEDDING = 8
    OPTIMIZER = 9
    COPY = 10
    SORT = 11
    RANDOM = 12
    LAYOUT = 13
    COLLECTIVE = 14


class CopyDirection(IntEnum):
    """The memories that a copy moves bytes between."""

    UNKNOWN = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    PEER_TO_PEER = 4
    HOST_TO_HOST = 5
