"""What program was profiled: mode, framework, parallelism, input and compilers.

Sources: the named projects' own code, where the functions, operators and annotations are defined.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from types import MappingProxyType

import numpy as np
from msgspec import Struct

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.device import used_devices
from tb_perfadvisor.signals.device.copies import larger_copies
from tb_perfadvisor.signals.host.optimizer_loops import updating_kernels
from tb_perfadvisor.signals.input.loader_workers import awaited_workers
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.collective_roles import Role, collective_roles
from tb_perfadvisor.signals.ranks.exposed_communication import copies_of_gradients, gathered_once
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, KernelFamily, Trace
from tb_perfadvisor.trace.names import GENERATED_FILE, GENERATED_KERNEL


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
    DEEPSPEED = ("DeepSpeed", Aspect.FRAMEWORK)
    MEGATRON = ("Megatron", Aspect.FRAMEWORK)
    TORCHTITAN = ("torchtitan", Aspect.FRAMEWORK)
    TORCHREC = ("TorchRec", Aspect.FRAMEWORK)
    VLLM = ("vLLM", Aspect.FRAMEWORK)
    SGLANG = ("SGLang", Aspect.FRAMEWORK)
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
    DALI = ("DALI", Aspect.INPUT)
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
    VOLUMES = ("convolutions of volumes", Aspect.FEATURE)
    """In three dimensions, on tensors of five."""
    PINNED_BATCHES = ("copies from pinned memory", Aspect.FEATURE)
    """All larger copies to the device come from pinned memory."""
    COPY_STREAM = ("copies on a stream of their own", Aspect.FEATURE)
    """All larger copies to the device run on streams without kernels."""
    CUSTOM_ALL_REDUCE = ("custom all-reduce", Aspect.FEATURE)
    """All-reduces in one or two steps among the devices of a node, without NCCL."""
    OVERLAPPED_SCHEDULE = ("overlapped scheduling", Aspect.FEATURE)
    """A server prepares the next step on the host while the device runs the current one."""
    DECISIONS = ("decisions between few launches", Aspect.FEATURE)
    """Conditions on tensors and boolean masks: a compiler breaks its graphs at each of them."""
    NEW_SHAPES = ("shapes that change", Aspect.FEATURE)
    """Steps multiply matrices of sizes that none before had: a compiler starts anew for them."""
    SECOND_DERIVATIVES = ("second derivatives", Aspect.FEATURE)
    """A backward pass through a backward pass, which `torch.compile` refuses."""
    RANGES = ("ranges of its own", Aspect.FEATURE)
    """The program names parts of its step, with `record_function` or NVTX."""
    STEP_CALLS = ("prof.step()", Aspect.FEATURE)
    """The profiler marks the steps, because the program tells it."""

    RUN = ("recorded by perfadvisor", Aspect.FEATURE)
    """`perfadvisor run` or `continuous` recorded it, and chose the profiler's options."""

    NVIDIA = ("NVIDIA", Aspect.HARDWARE)
    BEFORE_TRITON = ("GPU older than Triton's kernels", Aspect.HARDWARE)
    """Compute capability below 7.0, for which Inductor compiles nothing."""
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
    Part.DEEPSPEED,
    Part.MEGATRON,
    Part.TORCHTITAN,
    Part.TORCHREC,
)
"""Frameworks that own the training loop: their settings replace code in the loop."""
SERVERS = (Part.VLLM, Part.SGLANG)
"""Frameworks that own an inference server's loop."""
INFERENCE_LIBRARIES = (Part.HF_PIPELINE, Part.DIFFUSERS)
OWN_THE_LOOP = (*TRAINERS, *SERVERS, *INFERENCE_LIBRARIES)
"""Frameworks that call the model themselves, so that the user's code has no loop to change."""
GROUPS = MappingProxyType({"trainers": TRAINERS, "servers": SERVERS, "own-the-loop": OWN_THE_LOOP})
"""Names for several parts at once."""
_MAKE_THE_REST = (Part.HF_TRAINER, Part.MEGATRON, Part.TORCHTITAN)
OWNERS = MappingProxyType(
    {
        "step": OWN_THE_LOOP,
        "loop": tuple(part for part in OWN_THE_LOOP if part not in (Part.DEEPSPEED, Part.TORCHREC)),
        "loader": (*_MAKE_THE_REST, *SERVERS, *INFERENCE_LIBRARIES),
        "optimizer": _MAKE_THE_REST,
    }
)
"""Frameworks whose users write no code in some place of a program: in the step, which includes how
the model is wrapped, in the loop around it, and where its loader and its optimizer are made."""


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


class Sign(Struct, frozen=True):
    """Events of some kinds whose names match a pattern prove a part."""

    part: Part
    kinds: tuple[EventKind, ...]
    pattern: re.Pattern[str]


_CALLS = (EventKind.OPERATOR, EventKind.ANNOTATION)
_FRAMES = (EventKind.PYTHON,)
_KERNELS = (EventKind.KERNEL,)
_INPUT = (EventKind.INPUT_WAIT, EventKind.INPUT_WORK)


def _named(part: Part, pattern: str, *kinds: EventKind) -> Sign:
    """Names that begin so, of operators and annotations unless kinds are given."""
    return Sign(part, kinds or _CALLS, regex(rf"^(?:{pattern})"))


def _frames(part: Part, path: str) -> Sign:
    """A Python frame is `path/to/file.py(line): function`; the path may start anywhere."""
    return Sign(part, _FRAMES, regex(rf"(?:^|/){path}"))


STACK_SIGNS: tuple[Sign, ...] = (
    _frames(Part.TRAINING, r"torch/(?:optim/\w+|autograd/(?:__init__|graph))\.py"),
    _frames(Part.OPTIMIZER, r"torch/optim/\w+\.py"),
)
"""What call stacks of allocations prove besides."""

SIGNS: tuple[Sign, ...] = (
    # Frameworks on top: by the files of their code, where stacks were recorded.
    _frames(Part.VLLM, r"vllm/(?:v1/|worker/|engine/|model_executor/)"),
    _frames(Part.FRONT_END, r"vllm/v1/engine/async_llm\.py"),
    _frames(Part.SGLANG, r"sglang/srt/"),
    _frames(Part.SERVER, r"tensorrt_llm/_torch/"),
    _frames(
        Part.LIGHTNING,
        r"(?:pytorch_lightning|lightning/pytorch|lightning_fabric|lightning/fabric)/",
    ),
    _frames(Part.HF_TRAINER, r"transformers/trainer\.py"),
    _frames(Part.HF_PIPELINE, r"transformers/pipelines/"),
    _frames(Part.TRANSFORMERS, r"transformers/(?:models|generation|integrations)/"),
    _frames(Part.DIFFUSERS, r"diffusers/(?:pipelines|models)/"),
    _frames(Part.DEEPSPEED, r"deepspeed/runtime/"),
    _frames(Part.MEGATRON, r"megatron/(?:core|training|legacy)/"),
    _frames(Part.TORCHTITAN, r"torchtitan/"),
    _frames(Part.TORCHREC, r"torchrec/"),
    _frames(Part.KERAS, r"keras/(?:src/)?(?:trainers|engine|backend)/"),
    _frames(Part.FLAX, r"flax/"),
    # And by the names of their operators and annotations.
    _named(Part.VLLM, r"vllm::|_vllm_\w*C::|execute_context_\d+\(\d+\)_generation_\d+\("),
    _named(
        Part.SERVER,
        r"execute_(?:context_)?\d+_context_\d+|(?:prefill|decode)\[bs=\d+(?:/\d+)? tok=\d"
        r"|trtllm::|\[Executor\] _forward_step\b",
    ),
    _named(Part.SGLANG, r"step\[(?:DECODE|EXTEND|PREFILL|MIXED|IDLE)\b|sgl_kernel::|sglang::"),
    _named(Part.LIGHTNING, r"\[pl\]|\[(?:Strategy|LightningModule|LightningDataModule|Callback)\]"),
    _named(Part.DEEPSPEED, r"DeepSpeed(?:Engine|ZeroOptimizer)"),
    _named(
        Part.MEGATRON,
        r"LinearWithGradAccumulationAndAsyncCommunication|_?VocabParallelCrossEntropy",
    ),
    _named(Part.TORCHREC, r"## (?:wait_)?sparse_data_dist ##|KeyedJaggedTensor"),
    _named(
        Part.KERAS,
        r"(?:Eager(?:Local)?Execute: )?__inference_(?:multi_step_on_iterator|"
        r"(?:train|test|predict)_function|one_step_on_(?:data|iterator))"
        r"|multi_step_on_iterator",
    ),
    _named(Part.KERAS, r"Profiled batch", EventKind.STEP),
    _named(Part.VOLUMES, r"aten::(?:slow_)?conv3d$|aten::conv_transpose3d$"),
    Sign(Part.VOLUMES, _KERNELS, regex(r"convolveNd_|(?i:conv3d|vol2col)")),
    # Parallelism.
    _named(Part.DDP, r"DistributedDataParallel\.|torch\.distributed\.ddp\.reducer::"),
    _frames(Part.DDP, r"torch/nn/parallel/distributed\.py"),
    _named(Part.FSDP, r"FullyShardedDataParallel\.|FSDP::|FSDP\w*\."),
    _frames(Part.FSDP, r"torch/distributed/(?:fsdp|_composable/fsdp)/"),
    _frames(Part.DATA_PARALLEL, r"torch/nn/parallel/data_parallel\.py"),
    _named(Part.DATA_PARALLEL, r"DataParallel\.forward"),
    _named(
        Part.TENSOR_PARALLEL,
        r"_(?:Reduce|Copy|Gather|Scatter)\w*ModelParallelRegion"
        r"|_\w+SequenceParallelRegion|_?VocabParallelCrossEntropy",
    ),
    _frames(Part.TENSOR_PARALLEL, r"(?:torch/distributed/tensor|megatron/core/tensor_parallel)/"),
    _frames(
        Part.PIPELINE_PARALLEL,
        r"(?:torch/distributed/pipelining|megatron/core/pipeline_parallel|deepspeed/runtime/pipe)/",
    ),
    # Input.
    _named(Part.LOADER, r"enumerate\(DataLoader\)|.*DataLoader", EventKind.INPUT_WAIT),
    _named(Part.LOADER_WORKERS, r".*_MultiProcessingDataLoaderIter", EventKind.INPUT_WAIT),
    _frames(Part.LOADER, r"torch/utils/data/dataloader\.py"),
    _named(Part.DALI, r"\[DALI\]", EventKind.ANNOTATION),
    _named(
        Part.TFDATA, r"Iterator|.*IteratorGetNext|.*Dataset(?!Iterator\.|\.__getitem__)", *_INPUT
    ),
    _named(Part.DATA_SERVICE, r"Iterator::.*::DataService(?:V\d+)?$", EventKind.INPUT_WORK),
    # grain/_src/python/dataset/stats.py
    _named(Part.GRAIN, r"\w*(?:DatasetIterator\.__next__|MapDataset\.__getitem__)$", *_INPUT),
    _named(Part.PYTHON_INPUT, r".*(?:Generator|PyFunc|NumpyFunction)", *_INPUT),
    # What is compiled or recorded already.
    _named(Part.DEVICE_GRAPHS, r"(?:cuda|cu|hip)GraphLaunch", EventKind.LAUNCH),
    _named(
        Part.TORCH_COMPILE,
        r"Torch-Compiled Region|CompiledFunction(?:Backward)?$|## Call CompiledFxGraph |nvFuser::",
    ),
    Sign(Part.TORCH_COMPILE, _FRAMES, GENERATED_FILE),
    _named(Part.TORCH_COMPILE, GENERATED_KERNEL.pattern, *_KERNELS),
    _named(Part.INDUCTOR, r"## Call CompiledFxGraph "),
    Sign(Part.INDUCTOR, _FRAMES, GENERATED_FILE),
    _named(Part.INDUCTOR, GENERATED_KERNEL.pattern, *_KERNELS),
    Sign(
        Part.CUSTOM_ALL_REDUCE,
        (EventKind.KERNEL, EventKind.COLLECTIVE),
        regex(
            r"cross_device_reduce|(?:one|two)_?shot_?\w{0,60}reduce|multimem_all|lamport|quick_?reduce",
            re.IGNORECASE,
        ),
    ),
    _frames(
        Part.OVERLAPPED_SCHEDULE,
        r"(?:vllm/v1/core/sched/async_scheduler\.py"
        r"|sglang/srt/managers/(?:scheduler\.py\(\d+\): event_loop_overlap|overlap_utils\.py))",
    ),
    # Training, and how it is done.
    _named(
        Part.TRAINING,
        r"Optimizer\.(?:step|zero_grad)#|autograd::engine::evaluate_function|\w+Backward\d*$"
        r"|ResourceApply|ApplyGradient|gradient_tape/"
        r"|(?:Eager(?:Local)?Execute: )?__inference_train_function",
    ),
    _named(Part.SECOND_DERIVATIVES, r"\w+BackwardBackward\d*$"),
    _named(Part.OPTIMIZER, r"Optimizer\.(?:step|zero_grad)#|ResourceApply"),
    _named(
        Part.FUSED_OPTIMIZER,
        r"aten::_fused_(?:adam|adamw|sgd|adagrad)_|Optimizer\.step#(?:Fused|DeepSpeedCPU)",
    ),
    # torch.optim: which optimizers have a fused or a foreach form.
    _named(Part.ADAM, r"Optimizer\.step#AdamW?\.step"),
    _named(Part.SGD, r"Optimizer\.step#SGD\.step"),
    _named(
        Part.FOREACH_OPTIMIZER,
        r"Optimizer\.step#(?:Adadelta|Adagrad|Adamax|ASGD|NAdam|RAdam|RMSprop|Rprop)\.step",
    ),
    # Not those of PyTorch, not those that call others, and not those whose name says that they are
    # fused or quantized, which have kernels of their own.
    _named(
        Part.OWN_OPTIMIZER,
        r"Optimizer\.step#(?!(?:AdamW?|SGD|Adadelta|Adafactor|Adagrad|Adamax|ASGD|LBFGS|NAdam|RAdam"
        r"|RMSprop|Rprop|SparseAdam)\.step|(?=\w*(?:Optimizer|Wrapper))\w+\.step|Fused|\w*8bit)\w+\.step",
    ),
    _named(Part.FOREACH_UPDATES, r"aten::_foreach_(?:add|addcdiv|addcmul|lerp)_$"),
    _named(Part.CHECKPOINTING, r"CheckpointFunction"),
    _frames(Part.CHECKPOINTING, r"torch/utils/checkpoint\.py"),
    # Not those of PyTorch, its libraries and DALI.
    _named(
        Part.RANGES,
        r"(?!PyTorch Profiler|ProfilerStep|\[|## Call Compiled|Optimizer\.|enumerate\("
        r"|DistributedDataParallel|\w*nccl|\w+ccl:|gloo:|autograd::|GraphCache::|\w+::)",
        EventKind.ANNOTATION,
    ),
    _named(Part.STEP_CALLS, r"ProfilerStep#", EventKind.STEP),
    # The vendor, by the names of its runtime.
    _named(Part.AMD, r"hip[A-Z]", EventKind.LAUNCH, EventKind.SYNCHRONIZE),
    _named(Part.NVIDIA, r"cu(?:da)?[A-Z]", EventKind.LAUNCH, EventKind.SYNCHRONIZE),
)


UNKNOWN = "unknown"
_FEWEST_OPERATORS = 20
"""A recording of fewer operators may simply not have come to the backward pass."""
_LONGEST_NAME = 80
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution")
_FEW_NEW = 0.1
_DECISIONS = ("aten::is_nonzero", "aten::nonzero")
_FEWEST_BETWEEN = 10
"""Launches. Compiling what is shorter saves about what entering and leaving it costs."""
_VOLTA = 7
"""Major compute capability. Triton generates no code for older devices."""
_DERIVATIVE = "transpose(jvp("
"""JAX names operations of the backward pass so."""
_REDUCING = ("all-reduce", "reduce-scatter", "reduce")
_NARROW = ("bfloat16", "half", "float16", "c10::bfloat16", "c10::half")

_PARALLEL = {
    Role.SHARDS: Part.FSDP,
    Role.TENSOR: Part.TENSOR_PARALLEL,
    Role.CONTEXT: Part.CONTEXT_PARALLEL,
    Role.PIPELINE: Part.PIPELINE_PARALLEL,
    Role.EXPERTS: Part.EXPERT_PARALLEL,
}


class Fact(Struct, frozen=True):
    """A part of the program, and what proves it."""

    part: Part
    evidence: str


class Workload(Struct, frozen=True):
    """What program was profiled. A part without evidence is unknown, not absent."""

    base: str
    """pytorch, tensorflow, jax, none or unknown."""
    facts: tuple[Fact, ...]

    def has(self, part: Part) -> bool:
        """Whether there is evidence of a part."""
        return any(fact.part is part for fact in self.facts)

    def of(self, aspect: Aspect) -> tuple[Part, ...]:
        """The parts that answer one question, in order of `Part`."""
        return tuple(part for part in Part if part.aspect is aspect and self.has(part))

    @property
    def mode(self) -> str:
        """What the program does: training, forward only, …; or unknown."""
        for part in (Part.FRONT_END, Part.SERVER, Part.TRAINING, Part.FORWARD_ONLY):
            if self.has(part):
                return part.label
        return UNKNOWN

    @property
    def framework(self) -> str:
        """The framework on top; `plain` if stacks were recorded and show none."""
        found = self.of(Aspect.FRAMEWORK)
        return found[0].label if found else UNKNOWN


@memoized
def workload(signals: Signals) -> Workload:
    """What program was profiled."""
    facts = _by_names(signals.trace)
    facts.update(_by_call_stacks(signals.trace, facts))
    if signals.trace.source.framework in ("tensorflow", "jax"):
        facts.pop(Part.RANGES, None)  # their runtimes write ranges, too
    for more in (_mode, _compiled, _features, _parallelism, _hardware, _recorder):
        facts.update({part: text for part, text in more(signals, facts) if part not in facts})
    return Workload(
        signals.trace.source.framework,
        tuple(Fact(part, facts[part]) for part in Part if part in facts),
    )


Facts = dict[Part, str]
"""Parts with their evidence."""


def _by_names(trace: Trace) -> Facts:
    """The parts that names of events prove."""
    facts: Facts = {}
    for kinds in dict.fromkeys(sign.kinds for sign in SIGNS):
        count = np.bincount(trace.events.name[trace.rows(*kinds)], minlength=1)
        names = np.flatnonzero(count)
        names = names[np.argsort(-count[names], kind="stable")]  # the most frequent first
        texts = [trace.strings[name] for name in names.tolist()]
        for sign in SIGNS:
            if sign.kinds != kinds or sign.part in facts:
                continue
            for text, times in zip(texts, count[names].tolist(), strict=True):
                if sign.pattern.search(text):
                    facts[sign.part] = _seen(text, times)
                    break
    return facts


def _by_call_stacks(trace: Trace, known: Facts) -> Facts:
    """The parts that call stacks of allocations prove."""
    if trace.snapshot is None:
        return {}
    files = dict.fromkeys(
        frame.file.replace("\\", "/") for frame in trace.snapshot.stacks.frames if frame.file
    )
    return {
        sign.part: f"call stacks in {'/'.join(file.split('/')[-3:])}"
        for sign in (*STACK_SIGNS, *SIGNS)
        if sign.kinds == (EventKind.PYTHON,) and sign.part not in known
        for file in files
        if sign.pattern.search(file)
    }


def _seen(name: str, count: int) -> str:
    shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
    return f"{count:,} × {shown}"


def _mode(signals: Signals, facts: Facts) -> Iterator[tuple[Part, str]]:
    trace = signals.trace
    for part in SERVERS:
        if part in facts:
            yield Part.SERVER, f"{part.label}: {facts[part]}"
    if Part.TRAINING in facts:
        return
    differentiated = sum(_DERIVATIVE in path for path in trace.texts(trace.hlo.path))
    operators = len(trace.rows(EventKind.OPERATOR))
    if differentiated:
        yield Part.TRAINING, f"{differentiated:,} XLA operations of a derivative"
    elif trace.source.framework == "pytorch" and operators >= _FEWEST_OPERATORS:
        yield Part.FORWARD_ONLY, f"{operators:,} operators, none of a backward pass or an optimizer"
    elif operators == 0 and (kernels := _backward_kernels(trace) or _updates(signals)):
        yield Part.TRAINING, kernels


def _updates(signals: Signals) -> str:
    """Evidence of an optimizer that has no name; empty if there is none."""
    is_pytorch = signals.trace.source.framework == "pytorch"
    count = len(updating_kernels(signals)) if is_pytorch else 0
    return f"{count:,} elementwise kernels that end the steps" if count else ""


def _backward_kernels(trace: Trace) -> str:
    """Evidence of kernels of a backward pass, for traces without operators.

    `dgrad` proves nothing: a transposed convolution of a forward pass runs such kernels.
    """
    count = np.bincount(trace.events.name[trace.kernels.row])
    for name in np.flatnonzero(count).tolist():
        if "backward" in trace.strings[name].lower():
            return _seen(trace.strings[name], int(count[name]))
    return ""


def _compiled(signals: Signals, facts: Facts) -> Iterator[tuple[Part, str]]:
    operations = len(signals.trace.hlo.name)
    if operations:
        yield Part.XLA, f"{operations:,} operations of XLA programs"


def _features(signals: Signals, facts: Facts) -> Iterator[tuple[Part, str]]:
    trace = signals.trace
    attention = trace.kernels.row[trace.kernels.family == KernelFamily.ATTENTION]
    if len(attention):
        yield Part.FUSED_ATTENTION, _seen(trace.name(int(attention[0])), len(attention))
    once = gathered_once(signals) if Part.TRAINING in facts else None
    if once is not None:
        yield Part.GATHERED_ONCE, f"{once:,} all-gathers, none of them in a backward pass"
    yield from _copies_to_device(signals)
    yield from _new_shapes(signals)
    names = trace.events.name[trace.rows(EventKind.OPERATOR)]
    count = int(trace.is_any_of(names, *_DECISIONS).sum())
    if _FEWEST_OPERATORS <= len(trace.rows(EventKind.LAUNCH)) < _FEWEST_BETWEEN * count:
        yield Part.DECISIONS, f"{count:,} × {' or '.join(_DECISIONS)}"
    if Part.OPTIMIZER not in facts and (updates := _updates(signals)):
        yield Part.OWN_OPTIMIZER, updates
    every = awaited_workers(signals)
    if every is not None and Part.LOADER_WORKERS not in facts:
        yield Part.LOADER_WORKERS, f"one batch in {every:,} is late"
    table = trace.collectives
    of_gradients = collective_roles(signals).is_for(Role.GRADIENTS, Role.SHARDS)
    reduces = of_gradients & trace.is_any_of(table.operation, *_REDUCING)
    narrow = sum(dtype.lower() in _NARROW for dtype in trace.texts(table.dtype[reduces]))
    if 2 * narrow > reduces.sum():
        yield Part.GRADIENTS_16_BIT, f"{narrow:,} of {reduces.sum():,} collectives of gradients"


def _new_shapes(signals: Signals) -> Iterator[tuple[Part, str]]:
    """Whether products of later steps often have shapes that no earlier one had."""
    trace, table = signals.trace, signals.trace.operators
    step, name = signals.steps.owner[table.row], trace.events.name[table.row]
    kept = (table.shapes >= 0) & (step >= 0) & trace.is_any_of(name, *_PRODUCTS)
    examined = trace.facts.examined
    if not kept.any() and examined is not None and examined.new_shapes > _FEW_NEW:
        yield Part.NEW_SHAPES, f"{examined.new_shapes:.0%} of products have new shapes in each step"
    step = step[kept]
    kinds, inverse = np.unique((name[kept], table.shapes[kept]), axis=1, return_inverse=True)
    first = np.full(kinds.shape[1], np.iinfo(np.int64).max)
    np.minimum.at(first, inverse.ravel(), step)
    later = step > step.min(initial=0)
    new = int((later & (first[inverse.ravel()] == step)).sum())
    # Two steps may be of two kinds.
    if len(signals.steps) > 2 and new > _FEW_NEW * later.sum():
        yield Part.NEW_SHAPES, f"{new:,} of {later.sum():,} products have new shapes"


def _copies_to_device(signals: Signals) -> Iterator[tuple[Part, str]]:
    """How the larger copies of the steps to the device are done."""
    larger = larger_copies(signals)
    if not len(larger.row):
        return
    count = f"all {len(larger.row):,} larger copies to the device"
    if larger.is_pinned.all():
        yield Part.PINNED_BATCHES, count
    if larger.is_apart.all():
        yield Part.COPY_STREAM, count


def _parallelism(signals: Signals, facts: Facts) -> Iterator[tuple[Part, str]]:
    run, trace = signals.run, signals.trace
    for use in collective_roles(signals).uses():
        part = _PARALLEL.get(use.role)
        # DeepSpeed's ZeRO shards parameters, too.
        if part is not None and not (part is Part.FSDP and Part.DEEPSPEED in facts):
            yield part, f"{use.count:,} collectives {use.evidence}"
    copied = len(copies_of_gradients(signals))
    if copied and Part.DDP not in facts:
        yield Part.DDP, f"{copied:,} copies right after all-reduces"
    ranks = max(len(run.sources), trace.source.world_size or 1)
    devices = len(used_devices(trace))
    if ranks > 1:
        yield Part.SEVERAL_DEVICES, f"{ranks:,} ranks"
    elif devices > 1:
        yield Part.SEVERAL_DEVICES, f"{devices:,} devices used"


def _recorder(signals: Signals, facts: Facts) -> Iterator[tuple[Part, str]]:
    if signals.trace.source.format == "nsight":
        yield Part.NSIGHT, "the format of the file"
    if signals.trace.facts.recording.by in ("run", "continuous"):
        yield Part.RUN, "what the recorder stored beside the profile"


def _hardware(signals: Signals, facts: Facts) -> Iterator[tuple[Part, str]]:
    if signals.trace.snapshot is not None and Part.GPU not in facts:
        yield Part.GPU, "a memory snapshot of it"
    if signals.device.is_host_only:
        yield Part.CPU_ONLY, "no device events, no launches and no devices"
        return
    known = signals.device_facts
    if known is None:
        return
    if known.kind == "tpu":
        yield Part.TPU, known.name
    elif known.kind == "gpu" or Part.NVIDIA in facts or Part.AMD in facts:
        yield Part.GPU, known.name or "its runtime calls"
    if known.vendor == "nvidia":
        yield Part.NVIDIA, known.name or known.evidence
        if known.compute_capability and int(known.compute_capability.split(".")[0]) < _VOLTA:
            yield Part.BEFORE_TRITON, f"compute capability {known.compute_capability}"
    if known.vendor == "amd":
        yield Part.AMD, known.name or known.evidence
