"""How to record what a profile lacks, in the terms of the program that was profiled.

Sources: those of `profiled_steps.py`, and Nsight Systems User Guide, "CLI Profile Command Switch
Options".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tb_perfadvisor.machine.facts import Line, Lines
from tb_perfadvisor.signals.recording.needs import Need
from tb_perfadvisor.signals.recording.profiled_steps import MARK_STEPS, MORE_STEPS
from tb_perfadvisor.signals.workload.fit import Hint, first_fitting, hint, pytorch_hint
from tb_perfadvisor.signals.workload.workload import Part, Workload


def _hint(text: str, *needs: Part) -> Hint:
    return Hint(text=text, needs=(Part.NSIGHT, *needs))


NSIGHT_SHAPES: Final = _hint(
    "Record with `nsys profile --pytorch=autograd-shapes-nvtx`, or run the steps in "
    "torch.autograd.profiler.emit_nvtx(record_shapes=True)."
)
_OPERATORS: Final = _hint(
    "Record with `nsys profile --pytorch=autograd-nvtx`, or run the steps in "
    "torch.autograd.profiler.emit_nvtx()."
)
NSIGHT_CUDA: Final = _hint("Record with `nsys profile --trace=cuda,nvtx,osrt`.")
_STEPS: Final = _hint(
    "Mark the steps: torch.cuda.nvtx.range_push(f'step {i}') at the beginning of each, and "
    "torch.cuda.nvtx.range_pop() at its end."
)
NSIGHT_STACKS: Final = _hint(
    "Record with `nsys profile --python-sampling=true`, or torch.profiler and with_stack=True.",
    Part.NVIDIA,
)
NSIGHT_MEMORY: Final = _hint(
    "Record with torch.profiler and profile_memory=True: Nsight Systems knows nothing of the "
    "allocator."
)
_TORCH_PROFILER: Final = _hint("Record with torch.profiler: Nsight Systems does not record this.")

NSIGHT_HINTS: Final[Mapping[Need, Hint]] = {
    Need.WORK: NSIGHT_CUDA,
    Need.DEVICE_EVENTS: NSIGHT_CUDA,
    Need.KERNELS: _hint("Record with `nsys profile --trace=cuda --cuda-graph-trace=node`."),
    Need.HOST_EVENTS: _OPERATORS,
    Need.LAUNCH_LINKS: NSIGHT_CUDA,
    Need.LAUNCHED_WORK: NSIGHT_CUDA,
    Need.ORIGINS: _OPERATORS,
    Need.INPUT: _OPERATORS,
    Need.INPUT_STAGES: _TORCH_PROFILER,
    Need.FILE_READS: _hint("Record with `nsys profile --trace=cuda,nvtx,osrt`."),
    Need.STEPS: _STEPS,
    Need.SEVERAL_STEPS: _hint("Record more steps: 5 to 20 are enough."),
    Need.DISPATCH: _OPERATORS,
    Need.PYTORCH: _OPERATORS,
    Need.PYTHON_FRAMES: _TORCH_PROFILER,
    Need.KERNEL_PRECISION: NSIGHT_SHAPES,
    Need.SHAPES: NSIGHT_SHAPES,
    Need.MEMORY: _TORCH_PROFILER,
    Need.MEMORY_CHANGES: _TORCH_PROFILER,
    Need.COLLECTIVE_SIZES: _hint(
        "Export with `nsys export --type sqlite --include-blobs true`: NCCL states the sizes of "
        "its messages in blobs."
    ),
}
"""Instead of the hints for the framework's own profiler."""
_MARK_ITERATIONS: Final = (
    "Mark the iterations: nvtxRangePush at the beginning of each, and nvtxRangePop at its end."
)
_BY_FRAMEWORKS: Final = {
    need: _MARK_ITERATIONS if need is Need.STEPS else ""
    for need, hint in NSIGHT_HINTS.items()
    if hint in (_STEPS, _OPERATORS, _TORCH_PROFILER, NSIGHT_SHAPES)
}
"""What only frameworks let record, for programs without any."""


def _set_option(
    keyword: str,
    nsight: Hint,
    vllm: str,
    sglang: str,
    megatron: str = "",
    purpose: str = "",
    rich_framework: str = "pytorch",
) -> tuple[Hint, ...]:
    """Variants of an option of torch.profiler.profile.

    `keyword` is the argument of torch.profiler.profile, `nsight` what it is with Nsight Systems,
    `vllm` the key of vLLM's profiler config, and `sglang` that of SGLang's /start_profile request.
    SGLang and Megatron may have none. `purpose` ends the sentence for plain PyTorch. Only rich
    recordings of `rich_framework` have the option, or of all if it is empty.
    """
    rich = (
        "perfadvisor records this in some steps only, in directories whose names end with _rich: "
        "analyze that one, or let the program run until there is one."
    )
    asked = f'Send "{sglang}": true with the request to /start_profile.' if sglang else ""
    return (
        nsight,
        Hint(text=rich, framework=rich_framework, needs=(Part.RUN,)),
        pytorch_hint(f"Pass --profiler-config.{vllm}=true to vllm serve.", Part.VLLM),
        pytorch_hint(asked, Part.SGLANG),
        *((pytorch_hint(f"Pass {megatron} to Megatron.", Part.MEGATRON),) if megatron else ()),
        pytorch_hint(f"Record with Lightning's PyTorchProfiler({keyword}=True).", Part.LIGHTNING),
        pytorch_hint(f"Record with {keyword}=True{purpose}."),
    )


_RUN_TIMES = (hint("Record with perfadvisor run, which times every step of each rank."),)


SHAPES = _set_option(
    "record_shapes",
    NSIGHT_SHAPES,
    vllm="torch_profiler_record_shapes",
    sglang="record_shapes",
    megatron="--pytorch-profiler-collect-shapes",
)
STACKS = _set_option(
    "with_stack",
    NSIGHT_STACKS,
    vllm="torch_profiler_with_stack",
    sglang="with_stack",
    megatron="--pytorch-profiler-collect-callstack",
    rich_framework="",
)
OF_TENSORFLOW = hint(
    "TensorFlow's profiler records no Python functions. Record with perfadvisor run, which also "
    "looks at which line the program is.",
    "tensorflow",
)
MEMORY = _set_option("profile_memory", NSIGHT_MEMORY, vllm="torch_profiler_with_memory", sglang="")
SNAPSHOT = (
    pytorch_hint(
        "Call torch.cuda.memory._record_memory_history() before the steps and "
        "torch.cuda.memory._dump_snapshot('memory.pickle') after them."
    ),
    hint("Only PyTorch records memory snapshots."),
)
OUTSIDE_GRAPHS = (
    pytorch_hint(
        "Kernels of GPU graphs have no shapes. Record some steps of vllm serve --enforce-eager, "
        "with --profiler-config.torch_profiler_record_shapes=true. Or record how graphs are "
        "captured, with --profiler-config.capture_torch_profiler=true, if your release has it.",
        Part.VLLM,
    ),
    pytorch_hint(
        "Kernels of GPU graphs have no shapes. Record some steps with --disable-cuda-graph, and "
        'send "record_shapes": true with the request to /start_profile. Or record how graphs are '
        "captured, with --enable-profile-cuda-graph, if your release has it.",
        Part.SGLANG,
    ),
    pytorch_hint(
        "Kernels of GPU graphs have no shapes. Record some steps without graphs, with "
        "record_shapes=True."
    ),
)
CONTEXT_LENGTHS = (
    pytorch_hint(
        "Pass --profiler-config.detailed_trace_annotation=true to vllm serve, if your release has "
        "this option.",
        Part.VLLM,
    ),
)
_ACTIVITIES = "Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
DEVICE_EVENTS = (
    NSIGHT_CUDA,
    Hint(
        text="Make sure that CUPTI, NVIDIA's profiling library, is found, that no other profiler "
        "is attached, and that profiling is not restricted to administrators: the driver option "
        "NVreg_RestrictProfilingToAdminUsers=0 lifts that.",
        framework="pytorch",
        needs=(Part.SERVER, Part.NVIDIA),
    ),
    pytorch_hint(
        f"{_ACTIVITIES}, and make sure that CUPTI is available (no other profiler attached; driver "
        "option NVreg_RestrictProfilingToAdminUsers=0).",
        Part.NVIDIA,
    ),
    pytorch_hint(
        f"{_ACTIVITIES}, and make sure that roctracer or rocprofiler-sdk, AMD's profiling "
        "libraries, are found and no other profiler is attached.",
        Part.AMD,
    ),
    pytorch_hint(
        f"{_ACTIVITIES}, or with the activity of your device, and make sure that its profiling "
        "library (such as CUPTI or rocprofiler-sdk) is found and no other profiler is attached.",
    ),
    hint(
        "Make sure that the profiler can access the device: CUPTI on the library path, no "
        "other profiler attached, profiling not restricted to administrators."
    ),
)
_BOTH = (
    pytorch_hint("Record with both ProfilerActivity.CPU and ProfilerActivity.CUDA."),
    hint("Record host and device together."),
)
_HOST_TRACER = hint("Record with the host tracer on (host_tracer_level=2).")
_WITH_SIZES = (
    *SHAPES[:-1],
    pytorch_hint(
        "Record with record_shapes=True on PyTorch 2.1 or later, or give the model's size with "
        "--parameters."
    ),
    hint("Give the model's size with --parameters."),
)
_NONE = (hint(""),)
EVERY_EVENT = (hint("Analyze the file before events were removed from it, or record fewer steps."),)
LOST_WORK = (
    Hint(
        text="Record without GPU graphs (vLLM: enforce_eager=True, SGLang: "
        "--disable-cuda-graph), or with a newer driver and profiling library, which record the "
        "kernels of graphs.",
        needs=(Part.DEVICE_GRAPHS,),
    ),
    hint(
        "Record fewer steps, with fewer options (no stacks, no shapes), so that the profiler's "
        "buffers do not overflow, and wait for the device before it stops."
    ),
)
_NAME_DEVICE = hint('Name the device, or one with the same rates: --device "H100 SXM5 80GB".')
UNSEEN_INPUT = (
    Hint(
        text="tf.data service prepares batches in other processes. Call "
        "tf.profiler.experimental.server.start(PORT) in each of its workers, and record them with "
        "tf.profiler.experimental.client.trace('grpc://WORKER:PORT', logdir, 2000): their profiles "
        "show the pipeline.",
        needs=(Part.DATA_SERVICE,),
    ),
    Hint(
        text="Grain's workers are processes of their own. grain.config.update('py_debug_mode', "
        "True) logs the time of each stage in all of them.",
        needs=(Part.GRAIN,),
    ),
)
"""How to look into processes that prepare batches for the profiled one."""

_EVERY_RANK = (
    hint("Record all ranks in the same steps, and put their traces into one directory."),
)
HINTS: dict[Need, tuple[Hint, ...]] = {
    Need.WORK: DEVICE_EVENTS,
    Need.DEVICE_EVENTS: DEVICE_EVENTS,
    Need.KERNELS: DEVICE_EVENTS,
    Need.EVENTS: (hint("Record an xplane, with TensorFlow 2.4 or later."),),
    Need.HOST_EVENTS: (pytorch_hint("Record with ProfilerActivity.CPU."), _HOST_TRACER),
    Need.LAUNCH_LINKS: _BOTH,
    Need.EVERY_LAUNCH: EVERY_EVENT,
    Need.NAMELESS_TIME: _NONE,
    Need.FILE_WRITES: _NONE,
    Need.LAUNCHED_WORK: _BOTH,
    Need.ORIGINS: _BOTH,
    Need.INPUT: (
        pytorch_hint("", Part.SERVER),  # its input is requests
        pytorch_hint("", Part.DIFFUSERS),  # its input is prompts
        pytorch_hint(
            "torch.utils.data.DataLoader records itself. Wrap any other loader: "
            "with torch.profiler.record_function('enumerate(DataLoader)#mine.__next__')."
        ),
        hint("Feed the step from a tf.data pipeline, which records its own events.", "tensorflow"),
        hint(
            "Grain and tf.data record their fetches. Loading in plain Python shows only as time "
            "without work: loop over tb_perfadvisor.instrument.jax.steps(loader), which marks each "
            "fetch.",
            "jax",
        ),
        *_NONE,
    ),
    Need.INPUT_STAGES: (
        STACKS[0],
        pytorch_hint(
            "Record with with_stack=True. The workers' own work is not recorded: profile a few "
            "batches with num_workers=0, which does the same work in the recorded process, or time "
            "the workers with tb_perfadvisor.instrument.torch.time_workers(loader).",
            Part.LOADER_WORKERS,
        ),
        *STACKS,
        *UNSEEN_INPUT,
        *_NONE,
    ),
    Need.FILE_READS: (*STACKS, *_NONE),
    Need.COMPILE_LOG: (
        pytorch_hint(
            "Set TORCH_TRACE to the run's directory before the program starts: torch.compile then "
            "logs why it breaks off and compiles again.",
            Part.TORCH_COMPILE,
        ),
        *_NONE,
    ),
    Need.ITERATORS: (
        hint(
            "tf.data records its iterators with host_tracer_level=2. Other input shows no stages.",
            "tensorflow",
        ),
        *_NONE,
    ),
    Need.INFEED: _NONE,
    Need.CPU_PROGRAM: (hint("It concerns programs that run on the CPU alone."),),
    Need.RUN_LINES: (hint("Record with perfadvisor run, which looks where the program is."),),
    Need.RUN_TIMERS: _RUN_TIMES,
    Need.RUN_INPUT: _RUN_TIMES,
    Need.RUN_RANKS: _RUN_TIMES,
    Need.EXAMINED_STEPS: (
        hint("Record with perfadvisor run, which looks at the tensors of a few steps."),
    ),
    Need.STEPS: MARK_STEPS,
    Need.DISPATCH: (
        hint("See launch-bound for the cost of eager operators in PyTorch.", "pytorch"),
        _HOST_TRACER,
    ),
    Need.PYTORCH: (pytorch_hint("Every profile of torch.profiler has them."), *_NONE),
    Need.COMPILED_REGIONS: (
        pytorch_hint(
            "torch.compile records its regions since PyTorch 2.3. See launch-bound for the cost of "
            "eager operators."
        ),
        *_NONE,
    ),
    Need.PYTHON_FRAMES: (
        *STACKS[:-1],
        pytorch_hint(
            "Record with with_stack=True, and for the garbage collector with "
            "experimental_config=torch._C._profiler._ExperimentalConfig("
            "record_python_gc_info=True)."
        ),
        OF_TENSORFLOW,
        hint("Record with the Python tracer on (python_tracer_level=1)."),
    ),
    Need.SEVERAL_STEPS: MORE_STEPS,
    Need.KERNEL_PRECISION: (
        *SHAPES[:-1],
        pytorch_hint("Record with record_shapes=True, so that operators carry their types."),
        *_NONE,
    ),
    Need.SHAPES: (*SHAPES, hint("Shapes are part of the programs in XLA profiles.")),
    Need.PEAKS: (_NAME_DEVICE,),
    Need.MEMORY: (*MEMORY, hint("Memory events come with the host tracer (host_tracer_level=2).")),
    Need.MEMORY_CHANGES: (
        *MEMORY,
        hint("Memory events come with the host tracer (host_tracer_level=2)."),
    ),
    Need.MEMORY_CAPACITY: (_NAME_DEVICE,),
    Need.SNAPSHOT_CAPACITY: (_NAME_DEVICE,),
    Need.MEMORY_SNAPSHOT: SNAPSHOT,
    Need.MEMORY_HISTORY: SNAPSHOT,
    Need.BARRIERS: _NONE,
    Need.TILED_LAYOUTS: (hint("Tiled layouts appear in TPU profiles only."),),
    Need.XLA_OPERATIONS: (hint("Profiles of TPUs, and of JAX on the CPU, have it."),),
    Need.PROGRAMS: (
        hint("Recorders of TPU profiles embed them, unless an option says otherwise."),
    ),
    Need.MATRIX_UNIT: (hint("Profiles of TPUs state it."),),
    Need.COPIES: _NONE,
    Need.HOST_MEMORY: (
        hint("The recorder does not state the memory of each copy. A newer version may."),
    ),
    Need.COLLECTIVES: _NONE,
    Need.ALL_DEVICES: (
        Hint(
            text="Watch nvidia-smi while the program runs: it shows what all processes use.",
            needs=(Part.NVIDIA,),
        ),
        Hint(
            text="Watch amd-smi monitor while the program runs: it shows what all processes use.",
            needs=(Part.AMD,),
        ),
        Hint(
            text="Watch tpu-info while the program runs: it shows what all processes use.",
            needs=(Part.TPU,),
        ),
        hint("Watch the devices' monitor while the program runs: it shows what all processes use."),
    ),
    Need.STEP_ENDS: _NONE,
    Need.ALL_RANKS: _EVERY_RANK,
    Need.SEVERAL_RANKS: _EVERY_RANK,
    Need.COLLECTIVE_SIZES: _WITH_SIZES,
    Need.SENT_SIZES: (
        *SHAPES[:-1],
        pytorch_hint("Record with record_shapes=True, on PyTorch 2.1 or later."),
        *_NONE,
    ),
    Need.LINK_BANDWIDTH: (hint("Give the link's bandwidth with --link-bandwidth."),),
}


def hint_for(need: Need, workload: Workload) -> str:
    """How to record what is missing, in the program's terms; empty if nothing helps."""
    of_recorder = (NSIGHT_HINTS[need],) if need in NSIGHT_HINTS else ()
    if workload.base == "none" and need in _BY_FRAMEWORKS:
        return _BY_FRAMEWORKS[need]
    hint = first_fitting((*of_recorder, *HINTS[need]), workload)
    if hint and workload.has(Part.FRONT_END):
        return "Use the profile of a worker of the same recording."
    return hint


FEWEST_SPELLS = 4
"""A function is compiled for a batch, for the last batch of an epoch, and for evaluation."""


def recompiled(lines: Lines | None, fewest_spells: float = FEWEST_SPELLS) -> tuple[Line, ...]:
    """The lines that were seen to wait for compilations in several spells, apart from each other.

    In fewer spells, what is compiled may be needed.
    """
    return tuple(
        line
        for line in (() if lines is None else lines.lines)
        if line.activity == "compiling" and (line.spells or 0) >= fewest_spells
    )
