"""Parts that a program may have. Advice names the parts that it needs."""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType


class Aspect(Enum):
    """The question about a program that a part answers."""

    MODE = "mode"
    FRAMEWORK = "framework"
    """The framework on top of PyTorch, TensorFlow or JAX."""
    PARALLELISM = "parallelism"
    INPUT = "input"
    COMPILED = "compiled"
    FEATURE = "feature"
    HARDWARE = "hardware"
    RECORDER = "recorder"


class Part(Enum):
    """Something that the trace shows a program to have. Each has a word for users and an aspect."""

    TRAINING = ("training", Aspect.MODE)
    FORWARD_ONLY = ("forward only", Aspect.MODE)
    """Inference or evaluation, without a backward pass or an optimizer. Servers have it, too."""
    SERVER = ("inference server", Aspect.MODE)
    FRONT_END = ("front end of an inference server", Aspect.MODE)
    """The process that takes requests and returns tokens; the model runs in others."""

    LIGHTNING = ("Lightning", Aspect.FRAMEWORK)
    HF_TRAINER = ("Hugging Face Trainer", Aspect.FRAMEWORK)
    HF_PIPELINE = ("Hugging Face pipeline", Aspect.FRAMEWORK)
    DIFFUSERS = ("Diffusers", Aspect.FRAMEWORK)
    TRANSFORMERS = ("Hugging Face Transformers", Aspect.FRAMEWORK)
    ACCELERATE = ("Accelerate", Aspect.FRAMEWORK)
    DEEPSPEED = ("DeepSpeed", Aspect.FRAMEWORK)
    MEGATRON = ("Megatron", Aspect.FRAMEWORK)
    TORCHTITAN = ("torchtitan", Aspect.FRAMEWORK)
    TORCHREC = ("TorchRec", Aspect.FRAMEWORK)
    VLLM = ("vLLM", Aspect.FRAMEWORK)
    SGLANG = ("SGLang", Aspect.FRAMEWORK)
    TENSORRT_LLM = ("TensorRT-LLM", Aspect.FRAMEWORK)
    KERAS = ("Keras", Aspect.FRAMEWORK)
    FLAX = ("Flax", Aspect.FRAMEWORK)

    DATA_PARALLEL = ("DataParallel", Aspect.PARALLELISM)
    """`torch.nn.DataParallel`: one process for several devices."""
    DDP = ("DDP", Aspect.PARALLELISM)
    FSDP = ("FSDP", Aspect.PARALLELISM)
    TENSOR_PARALLEL = ("tensor parallel", Aspect.PARALLELISM)
    PIPELINE_PARALLEL = ("pipeline parallel", Aspect.PARALLELISM)
    EXPERT_PARALLEL = ("expert parallel", Aspect.PARALLELISM)
    CONTEXT_PARALLEL = ("context parallel", Aspect.PARALLELISM)
    SHARDED = ("sharded arrays", Aspect.PARALLELISM)
    """XLA partitions the program (JAX shardings, TPU pods)."""

    LOADER = ("DataLoader", Aspect.INPUT)
    LOADER_WORKERS = ("DataLoader with workers", Aspect.INPUT)
    TFDATA = ("tf.data", Aspect.INPUT)
    DATA_SERVICE = ("tf.data service", Aspect.INPUT)
    """Other processes, on any machine, prepare the batches of a tf.data pipeline."""
    GRAIN = ("Grain", Aspect.INPUT)
    PYTHON_INPUT = ("Python generator", Aspect.INPUT)
    INFEED = ("infeed", Aspect.INPUT)

    DEVICE_GRAPHS = ("GPU graphs", Aspect.COMPILED)
    """The program replays recorded graphs (CUDA or HIP)."""
    TORCH_COMPILE = ("torch.compile", Aspect.COMPILED)
    """Or another compiler that traces PyTorch programs, such as that of functorch."""
    INDUCTOR = ("Inductor", Aspect.COMPILED)
    """The compiler's usual backend, which generates Triton kernels. Its options are of no use to
    programs that are compiled by another one."""
    XLA = ("XLA", Aspect.COMPILED)

    OPTIMIZER = ("optimizer", Aspect.FEATURE)
    ADAM = ("Adam", Aspect.FEATURE)
    """`torch.optim.Adam` or `AdamW`."""
    SGD = ("SGD", Aspect.FEATURE)
    FOREACH_OPTIMIZER = ("optimizer with a foreach form only", Aspect.FEATURE)
    """One of PyTorch's optimizers that has no fused form, such as RMSprop."""
    OWN_OPTIMIZER = ("optimizer that is not PyTorch's", Aspect.FEATURE)
    FOREACH_UPDATES = ("updates of many parameters at once", Aspect.FEATURE)
    FUSED_OPTIMIZER = ("fused optimizer", Aspect.FEATURE)
    GRADIENTS_16_BIT = ("16-bit gradients", Aspect.FEATURE)
    CHECKPOINTING = ("activation checkpointing", Aspect.FEATURE)
    GATHERED_ONCE = ("parameters gathered once per step", Aspect.FEATURE)
    """Sharded parameters stay whole from the forward to the backward pass."""
    FUSED_ATTENTION = ("fused attention", Aspect.FEATURE)
    PINNED_BATCHES = ("copies from pinned memory", Aspect.FEATURE)
    """All larger copies to the device come from pinned memory."""
    COPY_STREAM = ("copies on a stream of their own", Aspect.FEATURE)
    """All larger copies to the device run on streams without kernels."""
    CUSTOM_ALL_REDUCE = ("custom all-reduce", Aspect.FEATURE)
    """All-reduces in one or two steps among the devices of a node, without NCCL."""
    OVERLAPPED_SCHEDULE = ("overlapped scheduling", Aspect.FEATURE)
    """A server prepares the next step on the host while the device runs the current one."""
    STEP_CALLS = ("prof.step()", Aspect.FEATURE)
    """The profiler marks the steps, because the program tells it."""

    RUN = ("recorded by perfadvisor", Aspect.FEATURE)
    """`perfadvisor run` or `continuous` recorded it, and chose the profiler's options."""

    NVIDIA = ("NVIDIA", Aspect.HARDWARE)
    AMD = ("AMD", Aspect.HARDWARE)
    GPU = ("GPU", Aspect.HARDWARE)
    TPU = ("TPU", Aspect.HARDWARE)
    CPU_ONLY = ("CPU", Aspect.HARDWARE)
    """The program ran on the CPU alone."""
    SEVERAL_DEVICES = ("several devices", Aspect.HARDWARE)
    """Several ranks, or one process that uses several devices."""

    NSIGHT = ("Nsight Systems", Aspect.RECORDER)
    """Recorded by Nsight Systems instead of the framework's own profiler."""

    def __init__(self, label: str, aspect: Aspect) -> None:
        self.label = label
        self.aspect = aspect


TRAINERS = (
    Part.LIGHTNING,
    Part.HF_TRAINER,
    Part.ACCELERATE,
    Part.DEEPSPEED,
    Part.MEGATRON,
    Part.TORCHTITAN,
    Part.TORCHREC,
)
"""Frameworks that own the training loop: their settings replace code in the loop."""
SERVERS = (Part.VLLM, Part.SGLANG, Part.TENSORRT_LLM)
"""Frameworks that own an inference server's loop."""
INFERENCE_LIBRARIES = (Part.HF_PIPELINE, Part.DIFFUSERS)
OWN_THE_LOOP = (*TRAINERS, *SERVERS, *INFERENCE_LIBRARIES)
"""Frameworks that call the model themselves, so that the user's code has no loop to change."""
GROUPS = MappingProxyType({"trainers": TRAINERS, "servers": SERVERS, "own-the-loop": OWN_THE_LOOP})
"""Names for several parts at once."""


SPLITS_THE_MODEL = frozenset(
    part.label
    for part in (
        Part.TENSOR_PARALLEL,
        Part.PIPELINE_PARALLEL,
        Part.EXPERT_PARALLEL,
        Part.CONTEXT_PARALLEL,
        Part.SHARDED,
    )
)
"""With these, ranks do not each process samples of their own."""
