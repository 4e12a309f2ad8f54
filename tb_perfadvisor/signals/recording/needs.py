"""What rules may need from a profile, and how to record it if it is missing."""

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
    ORIGINS = "origins"
    """Where device work comes from: a launch by an operator, or an XLA operation."""
    PYTHON_FRAMES = "python-frames"
    PYTORCH = "pytorch"
    """Operators with PyTorch's names."""
    DISPATCH = "dispatch"
    """Calls by which TensorFlow and JAX run operators or compiled functions."""
    COMPILED_REGIONS = "compiled-regions"
    """Calls of regions that torch.compile has compiled."""
    ALL_DEVICES = "all-devices"
    """All processes that may use the listed devices."""
    INPUT = "input"
    """Events of an input pipeline."""
    INPUT_STAGES = "input-stages"
    """What the input pipeline does inside a fetch: reading, preprocessing, collating."""
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
    BARRIERS = "barriers"
    """Barriers at which a TPU's cores wait for each other."""
    TILED_LAYOUTS = "tiled-layouts"
    """HLO text with tiles, as on a TPU."""


class Missing(Struct, frozen=True):
    """A need that is not met."""

    need: Need
    reason: str
    remedy: str


CPU_ONLY = "the program ran on the CPU alone"

SUMMED: dict[Need, str] = {
    Need.LAUNCH_LINKS: "the files contain only sums, not which call launched which kernel",
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

REMEDIES: dict[Need, dict[str, str]] = {
    Need.WORK: {
        "pytorch": "Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], and "
        "make sure that CUPTI is available (no other profiler attached; driver option "
        "NVreg_RestrictProfilingToAdminUsers=0).",
        "": "Make sure that the profiler can access the device: CUPTI on the library path, no "
        "other profiler attached, profiling not restricted to administrators.",
    },
    Need.EVENTS: {"": "Record an xplane, with TensorFlow 2.4 or later."},
    Need.HOST_EVENTS: {
        "pytorch": "Record with ProfilerActivity.CPU.",
        "": "Record with the host tracer on (host_tracer_level=2).",
    },
    Need.LAUNCH_LINKS: {
        "pytorch": "Record with both ProfilerActivity.CPU and ProfilerActivity.CUDA.",
        "": "Record host and device together.",
    },
    Need.ORIGINS: {
        "pytorch": "Record with both ProfilerActivity.CPU and ProfilerActivity.CUDA.",
        "": "Record host and device together.",
    },
    Need.INPUT: {
        "pytorch": "torch.utils.data.DataLoader records itself. Wrap any other loader: "
        "with torch.profiler.record_function('enumerate(DataLoader)#mine.__next__').",
        "tensorflow": "Feed the step from a tf.data pipeline, which records its own events.",
        "jax": "Loading in plain Python shows only as time without work. Loop over "
        "tb_perfadvisor.instrument.jax.steps(loader), which marks each fetch.",
        "": "",
    },
    Need.INPUT_STAGES: {
        "pytorch": "Record with with_stack=True. If worker processes load, profile a few batches "
        "with num_workers=0, which does the same work in the recorded process.",
        "": "",
    },
    Need.ITERATORS: {
        "tensorflow": "tf.data records its iterators with host_tracer_level=2. Other input shows "
        "no stages.",
        "": "",
    },
    Need.INFEED: {"": ""},
    Need.STEPS: {
        "pytorch": "Call prof.step() at the end of each training step.",
        "tensorflow": "Wrap each step: with tf.profiler.experimental.Trace('train', step_num=i, "
        "_r=1).",
        "jax": "Wrap each step: with jax.profiler.StepTraceAnnotation('train', step_num=i).",
        "": "Mark the steps in the training script.",
    },
    Need.DISPATCH: {
        "pytorch": "See launch-bound for the cost of eager operators in PyTorch.",
        "": "Record with the host tracer on (host_tracer_level=2).",
    },
    Need.PYTORCH: {"pytorch": "Every profile of torch.profiler has them.", "": ""},
    Need.COMPILED_REGIONS: {
        "pytorch": "torch.compile records its regions since PyTorch 2.3. See launch-bound for the "
        "cost of eager operators.",
        "": "",
    },
    Need.PYTHON_FRAMES: {
        "pytorch": "Record with with_stack=True, and for the garbage collector with "
        "experimental_config=torch._C._profiler._ExperimentalConfig(record_python_gc_info=True).",
        "": "Record with the Python tracer on (python_tracer_level=1).",
    },
    Need.SEVERAL_STEPS: {
        "pytorch": "Record more steps: torch.profiler.schedule(wait=1, warmup=2, active=20).",
        "tensorflow": "Record more steps: profile_batch=(10, 30).",
        "": "Record twenty steps or more.",
    },
    Need.KERNEL_PRECISION: {
        "pytorch": "Record with record_shapes=True, so that operators carry their types.",
        "": "",
    },
    Need.SHAPES: {
        "pytorch": "Record with record_shapes=True.",
        "": "Shapes are part of the programs in XLA profiles.",
    },
    Need.PEAKS: {"": "The device is not in the hardware table."},
    Need.MEMORY: {
        "pytorch": "Record with profile_memory=True.",
        "": "Memory events come with the host tracer (host_tracer_level=2).",
    },
    Need.MEMORY_CHANGES: {
        "pytorch": "Record with profile_memory=True.",
        "": "Memory events come with the host tracer (host_tracer_level=2).",
    },
    Need.MEMORY_CAPACITY: {"": "The profile does not state the device's memory size."},
    Need.BARRIERS: {"": ""},
    Need.TILED_LAYOUTS: {"": "Tiled layouts appear in TPU profiles only."},
    Need.COPIES: {"": ""},
    Need.HOST_MEMORY: {
        "": "The recorder does not state the memory of each copy. A newer version may."
    },
    Need.COLLECTIVES: {"": ""},
    Need.ALL_DEVICES: {
        "": "Watch the device monitor (nvidia-smi, rocm-smi, tpu-info) while the program runs: it "
        "shows what all processes use."
    },
    Need.STEP_ENDS: {"": ""},
    Need.ALL_RANKS: {
        "": "Record all ranks in the same steps, and put their traces into one directory."
    },
    Need.COLLECTIVE_SIZES: {
        "pytorch": "Record with record_shapes=True on PyTorch 2.1 or later, or give the model's "
        "size with --parameters.",
        "": "Give the model's size with --parameters.",
    },
    Need.SENT_SIZES: {
        "pytorch": "Record with record_shapes=True, on PyTorch 2.1 or later.",
        "": "",
    },
    Need.LINK_BANDWIDTH: {"": "Give the link's bandwidth with --link-bandwidth."},
    Need.DEVICE_EVENTS: {},
}
REMEDIES[Need.DEVICE_EVENTS] = REMEDIES[Need.WORK]
REMEDIES[Need.KERNELS] = REMEDIES[Need.WORK]


def remedy_for(need: Need, framework: str) -> str:
    """How to record what is missing, in the words of the framework."""
    texts = REMEDIES[need]
    return texts.get(framework, texts.get("", ""))
