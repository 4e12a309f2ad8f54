"""What rules may need from a profile."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Need(Enum):
    """A signal that a rule cannot work without."""

    WORK = "work"
    """Device events, or the operators of a program that ran on the CPU alone."""
    DEVICE_EVENTS = "device-events"
    EVENTS = "events"
    """Single events, not only sums. Every rule needs them unless it sets `reads_sums`."""
    HOST_EVENTS = "host-events"
    LAUNCH_LINKS = "launch-links"
    """Which runtime call launched which device event."""
    EVERY_LAUNCH = "every-launch"
    """All launches between those that were recorded: some files keep only a sample of events."""
    NAMELESS_TIME = "nameless-time"
    """A large part of the time of which nothing tells what the host did."""
    LAUNCHED_WORK = "launched-work"
    """Which call launched which work, on a device or, by JAX, on the CPU."""
    ORIGINS = "origins"
    """Where device work comes from: a launch by an operator, or an XLA operation."""
    PYTHON_FRAMES = "python-frames"
    PYTORCH = "pytorch"
    """Operators with PyTorch's names."""
    CPU_PROGRAM = "cpu-program"
    """A program that ran on the CPU alone."""
    RUN_LINES = "run-lines"
    """Lines at which the program was over its whole run, as `perfadvisor run` looks."""
    RUN_TIMERS = "run-timers"
    """Timers of every step of the run, as `run` and `continuous` keep them."""
    RUN_INPUT = "run-input"
    """The same, in which the loop was seen to fetch its input."""
    RUN_RANKS = "run-ranks"
    """The same of several ranks, which tell when each begins its gradients, or waits for input."""
    FILE_WRITES = "file-writes"
    """Operators that write summaries or checkpoints, as TensorFlow runs them."""
    EXAMINED_STEPS = "examined-steps"
    """What `perfadvisor run` finds in the tensors of a few steps."""
    DISPATCH = "dispatch"
    """Calls by which TensorFlow and JAX run operators or compiled functions."""
    COMPILED_REGIONS = "compiled-regions"
    """Calls of regions that torch.compile has compiled."""
    COMPILE_LOG = "compile-log"
    """What torch.compile logs of itself."""
    ALL_DEVICES = "all-devices"
    """All processes that may use the listed devices."""
    INPUT = "input"
    """Events of an input pipeline."""
    INPUT_STAGES = "input-stages"
    """What the input pipeline does inside a fetch: reading, preprocessing, collating."""
    FILE_READS = "file-reads"
    """The same, or that worker processes of a DataLoader do it."""
    ITERATORS = "iterators"
    """Calls of tf.data's iterators."""
    INFEED = "infeed"
    """A device that gets its input through an infeed."""
    STEPS = "steps"
    SEVERAL_STEPS = "several-steps"
    """Enough steps to compare them with each other."""
    STEP_ENDS = "step-ends"
    """Events that tell a step's own code from what runs between steps."""
    COPIES = "copies"
    """Copies, if there are any. Only sums may hide them."""
    HOST_MEMORY = "host-memory"
    """Whether the host memory that copies use is pinned."""
    COLLECTIVES = "collectives"
    ALL_RANKS = "all-ranks"
    """Collectives that all ranks of their group recorded."""
    SEVERAL_RANKS = "several-ranks"
    """Collectives that at least two ranks of their group recorded."""
    COLLECTIVE_SIZES = "collective-sizes"
    """Bytes and ranks of every all-reduce, or the model's number of parameters."""
    SENT_SIZES = "sent-sizes"
    """Bytes that each rank sends in all-to-alls, if there are any."""
    LINK_BANDWIDTH = "link-bandwidth"
    KERNELS = "kernels"
    """Single kernels, not only sums."""
    KERNEL_PRECISION = "kernel-precision"
    SHAPES = "shapes"
    """Shapes of operators' inputs, or FLOP that the file states."""
    PEAKS = "peaks"
    """The device's peak rates."""
    MEMORY = "memory"
    MEMORY_CHANGES = "memory-changes"
    """Single allocations, on the device or in a program that runs only on the CPU."""
    MEMORY_CAPACITY = "memory-capacity"
    MEMORY_SNAPSHOT = "memory-snapshot"
    """A snapshot of PyTorch's caching allocator."""
    MEMORY_HISTORY = "memory-history"
    """A snapshot with the history of allocations, and with times."""
    SNAPSHOT_CAPACITY = "snapshot-capacity"
    """The size of the memory that a snapshot is of."""
    BARRIERS = "barriers"
    """Barriers at which a TPU's cores wait for each other."""
    TILED_LAYOUTS = "tiled-layouts"
    """HLO text with tiles, as on a TPU."""
    XLA_OPERATIONS = "xla-operations"
    """HLO text of what XLA runs on a TPU or on the CPU."""
    PROGRAMS = "programs"
    """The XLA programs that ran on a TPU or on the CPU."""
    MATRIX_UNIT = "matrix-unit"
    """A recorder's statement of how much of the matrix units is used."""


RECORDABLE = frozenset(
    {
        Need.WORK,
        Need.DEVICE_EVENTS,
        Need.EVENTS,
        Need.HOST_EVENTS,
        Need.LAUNCH_LINKS,
        Need.EVERY_LAUNCH,
        Need.LAUNCHED_WORK,
        Need.ORIGINS,
        Need.PYTHON_FRAMES,
        Need.INPUT,
        Need.INPUT_STAGES,
        Need.FILE_READS,
        Need.STEPS,
        Need.SEVERAL_STEPS,
        Need.ALL_RANKS,
        Need.SEVERAL_RANKS,
        Need.COLLECTIVE_SIZES,
        Need.SENT_SIZES,
        Need.LINK_BANDWIDTH,
        Need.KERNELS,
        Need.KERNEL_PRECISION,
        Need.SHAPES,
        Need.PEAKS,
        Need.MEMORY,
        Need.MEMORY_CHANGES,
        Need.MEMORY_CAPACITY,
        Need.COMPILE_LOG,
        Need.SNAPSHOT_CAPACITY,
    }
)
"""What another recording of the same program, or an option, provides. If one of the other needs is
not met, the rule cannot concern the program, or no recorder tells."""


class Missing(Struct, frozen=True):
    """A need that is not met."""

    need: Need
    reason: str
    remedy: str


CPU_ONLY = "the program ran on the CPU alone"

SUMMED: dict[Need, str] = {
    Need.LAUNCH_LINKS: "the files contain only sums, not which call launched which kernel",
    Need.LAUNCHED_WORK: "the files contain only sums, not which call launched which kernel",
    Need.EVENTS: "the files contain only sums, no single events",
    Need.HOST_EVENTS: "the files contain only sums of device time, nothing about the host",
    Need.KERNELS: "the files contain only sums of device time, no single kernels",
    Need.COPIES: "the files do not separate copies from compute",
    Need.STEP_ENDS: "the files contain only sums of the steps, not what ran between them",
    Need.COLLECTIVES: "the files contain no collectives, or do not separate them from compute",
    Need.ALL_DEVICES: "the files contain only sums, not which device did what",
    Need.INPUT: "the files do not show whether the program has an input pipeline",
}
"""Why a need is not met if the recorder summed everything up."""
