"""How to record what a profile lacks, in the terms of the program that was profiled.

Sources: vllm/config/profiler.py; sglang/srt/managers/io_struct.py (ProfileReq);
megatron/training/arguments.py; torchtitan/tools/profiler.py; accelerate/utils/dataclasses.py
(ProfileKwargs); lightning/pytorch/profilers/pytorch.py.
"""

from __future__ import annotations

from tb_perfadvisor.signals.recording.needs import Need
from tb_perfadvisor.signals.workload.fit import Fit
from tb_perfadvisor.signals.workload.parts import Part
from tb_perfadvisor.signals.workload.workload import Workload


class Hint(Fit, frozen=True):
    """How to record something. `Fit` says in which programs."""

    text: str


def _torch(text: str, *needs: Part) -> Hint:
    return Hint(text=text, framework="pytorch", needs=needs)


def _said(text: str, framework: str = "") -> Hint:
    return Hint(text=text, framework=framework)


def _set_option(
    keyword: str, vllm: str, sglang: str, megatron: str = "", purpose: str = ""
) -> tuple[Hint, ...]:
    """Variants of an option of torch.profiler.profile.

    Args:
        keyword: The argument of torch.profiler.profile.
        vllm: The key of vLLM's profiler config.
        sglang: The key of SGLang's /start_profile request; empty if it has none.
        megatron: Megatron's option; empty if it has none.
        purpose: The end of the sentence for plain PyTorch.
    """
    asked = (
        f'Send "{sglang}": true with the request to /start_profile.'
        if sglang
        else "SGLang's profiler does not record this."
    )
    return (
        _torch(f"Pass --profiler-config.{vllm}=true to vllm serve.", Part.VLLM),
        _torch(asked, Part.SGLANG),
        *((_torch(f"Pass {megatron} to Megatron.", Part.MEGATRON),) if megatron else ()),
        _torch(f"Record with Lightning's PyTorchProfiler({keyword}=True).", Part.LIGHTNING),
        _torch(f"Record with Accelerate's ProfileKwargs({keyword}=True).", Part.ACCELERATE),
        _torch(f"Record with {keyword}=True{purpose}."),
    )


SHAPES = _set_option(
    "record_shapes",
    vllm="torch_profiler_record_shapes",
    sglang="record_shapes",
    megatron="--pytorch-profiler-collect-shapes",
)
STACKS = _set_option(
    "with_stack",
    vllm="torch_profiler_with_stack",
    sglang="with_stack",
    megatron="--pytorch-profiler-collect-callstack",
)
MEMORY = _set_option("profile_memory", vllm="torch_profiler_with_memory", sglang="")
MARK_STEPS = (
    _torch("Update vLLM: its profiler has come to annotate each step.", Part.VLLM),
    _torch("Update SGLang: its profiler has come to annotate each step.", Part.SGLANG),
    _torch(
        "Record with --profile --use-pytorch-profiler, which marks the steps.",
        Part.MEGATRON,
    ),
    _torch("Record with --profiler.enable_profiling, which marks the steps.", Part.TORCHTITAN),
    _torch(
        "Record with Lightning's PyTorchProfiler, as Trainer(profiler=PyTorchProfiler()): it "
        "marks the steps.",
        Part.LIGHTNING,
    ),
    _torch(
        "Call the profiler's step() in on_step_end of a TrainerCallback that you pass to the "
        "Trainer.",
        Part.HF_TRAINER,
    ),
    _torch(
        "Record with accelerator.profile(), and call the profiler's step() after each step.",
        Part.ACCELERATE,
    ),
    _torch(
        "Call the profiler's step() in the pipeline's callback_on_step_end.",
        Part.DIFFUSERS,
    ),
    _torch("Call prof.step() after each call of the model.", Part.FORWARD_ONLY),
    _torch("Call prof.step() at the end of each training step."),
    _said(
        "Wrap each step: with tf.profiler.experimental.Trace('train', step_num=i, _r=1).",
        "tensorflow",
    ),
    _said("Wrap each step: with jax.profiler.StepTraceAnnotation('train', step_num=i).", "jax"),
    _said("Mark the steps in the training script."),
)
MORE_STEPS = (
    _torch(
        "Record more steps: pass --profiler-config.max_iterations=20 and "
        "--profiler-config.ignore_frontend=true to vllm serve.",
        Part.VLLM,
    ),
    _torch(
        'Record more steps: send "num_steps": 20 with the request to /start_profile.', Part.SGLANG
    ),
    _torch(
        "Record more steps: --profile-step-start 10 --profile-step-end 30.",
        Part.MEGATRON,
    ),
    _torch(
        "Record more steps: --profiler.profiler_active 20 --profiler.profile_freq 30.",
        Part.TORCHTITAN,
    ),
    _torch(
        "Record more steps: PyTorchProfiler(schedule=torch.profiler.schedule(wait=1, warmup=2, "
        "active=20)).",
        Part.LIGHTNING,
    ),
    _torch(
        "Record more steps: ProfileKwargs(schedule_option={'wait': 1, 'warmup': 2, 'active': 20}).",
        Part.ACCELERATE,
    ),
    _torch(
        "Record more steps: torch.profiler.schedule(wait=1, warmup=2, active=20).",
        Part.STEP_CALLS,
    ),
    _said("Record more steps: profile_batch=(10, 30).", "tensorflow"),
    _said("Record twenty steps or more."),
)
SKIP_WARM_UP = (
    _torch(
        "Skip the first steps: pass --profiler-config.delay_iterations=20 and "
        "--profiler-config.ignore_frontend=true to vllm serve, or send requests of the same kind "
        "before you start the profiler.",
        Part.VLLM,
    ),
    _torch(
        'Send requests of the same kind before you start the profiler, or send "start_step" with '
        "the request to /start_profile.",
        Part.SGLANG,
    ),
    _torch(
        "Profile later steps: --profile-step-start 20 --profile-step-end 30.",
        Part.MEGATRON,
    ),
    _torch(
        "Profile later steps: --profiler.profile_freq 30 --profiler.profiler_active 5.",
        Part.TORCHTITAN,
    ),
    _torch(
        "Skip the first steps: PyTorchProfiler(schedule=torch.profiler.schedule(skip_first=10, "
        "wait=1, warmup=3, active=5)).",
        Part.LIGHTNING,
    ),
    _torch(
        "Skip the first steps: ProfileKwargs(schedule_option={'skip_first': 10, 'wait': 1, "
        "'warmup': 3, 'active': 5}).",
        Part.ACCELERATE,
    ),
    _torch(
        "Skip the first steps: pass schedule=torch.profiler.schedule(skip_first=10, wait=1, "
        "warmup=3, active=5).",
        Part.STEP_CALLS,
    ),
    _torch(
        "Call the pipeline with inputs of the same kind before you start the profiler.",
        Part.HF_PIPELINE,
    ),
    _torch("Call the pipeline once before you start the profiler.", Part.DIFFUSERS),
    _said(
        "Profile later steps: use TensorBoard(profile_batch=(10, 15)), or start the profiler after "
        "a few steps.",
        "tensorflow",
    ),
    _said("Run a few steps before jax.profiler.start_trace.", "jax"),
    _said("Run a few steps before recording."),
)
WAIT_BEFORE = (
    Hint(
        text="Start the server's profiler while no request runs.",
        framework="pytorch",
        needs=(Part.SERVER,),
    ),
    _torch(
        "Wait for the device before the profiler starts: torch.cuda.synchronize().",
        Part.GPU,
    ),
    _torch("Wait for the device before the profiler starts: torch.accelerator.synchronize()."),
    _said("Call jax.block_until_ready on the last results before jax.profiler.start_trace.", "jax"),
    _said("Wait for the device before the profiler starts."),
)
WAIT_AFTER = (
    Hint(
        text="Stop the server's profiler after the last request has been answered.",
        framework="pytorch",
        needs=(Part.SERVER,),
    ),
    _torch(
        "Wait for the device before the profiler stops: torch.cuda.synchronize().",
        Part.GPU,
    ),
    _torch("Wait for the device before the profiler stops: torch.accelerator.synchronize()."),
    _said("Call jax.block_until_ready on the last results before jax.profiler.stop_trace.", "jax"),
    _said("Wait for the device before the profiler stops."),
)
_ACTIVITIES = "Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
DEVICE_EVENTS = (
    Hint(
        text="Make sure that CUPTI, NVIDIA's profiling library, is found, that no other profiler "
        "is attached, and that profiling is not restricted to administrators: the driver option "
        "NVreg_RestrictProfilingToAdminUsers=0 lifts that.",
        framework="pytorch",
        needs=(Part.SERVER, Part.NVIDIA),
    ),
    _torch(
        f"{_ACTIVITIES}, and make sure that CUPTI is available (no other profiler attached; driver "
        "option NVreg_RestrictProfilingToAdminUsers=0).",
        Part.NVIDIA,
    ),
    _torch(
        f"{_ACTIVITIES}, and make sure that roctracer or rocprofiler-sdk, AMD's profiling "
        "libraries, are found and no other profiler is attached.",
        Part.AMD,
    ),
    _torch(
        f"{_ACTIVITIES}, or with the activity of your device, and make sure that its profiling "
        "library (such as CUPTI or rocprofiler-sdk) is found and no other profiler is attached.",
    ),
    _said(
        "Make sure that the profiler can access the device: CUPTI on the library path, no "
        "other profiler attached, profiling not restricted to administrators."
    ),
)
_BOTH = (
    _torch("Record with both ProfilerActivity.CPU and ProfilerActivity.CUDA."),
    _said("Record host and device together."),
)
_HOST_TRACER = _said("Record with the host tracer on (host_tracer_level=2).")
_WITH_SIZES = (
    *SHAPES[:-1],
    _torch(
        "Record with record_shapes=True on PyTorch 2.1 or later, or give the model's size with "
        "--parameters."
    ),
    _said("Give the model's size with --parameters."),
)
_NONE = (_said(""),)
_NAME_DEVICE = _said('Name the device, or one with the same rates: --device "H100 SXM5 80GB".')
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

HINTS: dict[Need, tuple[Hint, ...]] = {
    Need.WORK: DEVICE_EVENTS,
    Need.DEVICE_EVENTS: DEVICE_EVENTS,
    Need.KERNELS: DEVICE_EVENTS,
    Need.EVENTS: (_said("Record an xplane, with TensorFlow 2.4 or later."),),
    Need.HOST_EVENTS: (_torch("Record with ProfilerActivity.CPU."), _HOST_TRACER),
    Need.LAUNCH_LINKS: _BOTH,
    Need.LAUNCHED_WORK: _BOTH,
    Need.ORIGINS: _BOTH,
    Need.INPUT: (
        _torch("", Part.SERVER),  # it gets its input as requests
        _torch(
            "torch.utils.data.DataLoader records itself. Wrap any other loader: "
            "with torch.profiler.record_function('enumerate(DataLoader)#mine.__next__')."
        ),
        _said("Feed the step from a tf.data pipeline, which records its own events.", "tensorflow"),
        _said(
            "Grain and tf.data record their fetches. Loading in plain Python shows only as time "
            "without work: loop over tb_perfadvisor.instrument.jax.steps(loader), which marks each "
            "fetch.",
            "jax",
        ),
        *_NONE,
    ),
    Need.INPUT_STAGES: (
        _torch(
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
    Need.ITERATORS: (
        _said(
            "tf.data records its iterators with host_tracer_level=2. Other input shows no stages.",
            "tensorflow",
        ),
        *_NONE,
    ),
    Need.INFEED: _NONE,
    Need.STEPS: MARK_STEPS,
    Need.DISPATCH: (
        _said("See launch-bound for the cost of eager operators in PyTorch.", "pytorch"),
        _HOST_TRACER,
    ),
    Need.PYTORCH: (_torch("Every profile of torch.profiler has them."), *_NONE),
    Need.COMPILED_REGIONS: (
        _torch(
            "torch.compile records its regions since PyTorch 2.3. See launch-bound for the cost of "
            "eager operators."
        ),
        *_NONE,
    ),
    Need.PYTHON_FRAMES: (
        *STACKS[:-1],
        _torch(
            "Record with with_stack=True, and for the garbage collector with "
            "experimental_config=torch._C._profiler._ExperimentalConfig("
            "record_python_gc_info=True)."
        ),
        _said("Record with the Python tracer on (python_tracer_level=1)."),
    ),
    Need.SEVERAL_STEPS: MORE_STEPS,
    Need.KERNEL_PRECISION: (
        *SHAPES[:-1],
        _torch("Record with record_shapes=True, so that operators carry their types."),
        *_NONE,
    ),
    Need.SHAPES: (*SHAPES, _said("Shapes are part of the programs in XLA profiles.")),
    Need.PEAKS: (_NAME_DEVICE,),
    Need.MEMORY: (*MEMORY, _said("Memory events come with the host tracer (host_tracer_level=2).")),
    Need.MEMORY_CHANGES: (
        *MEMORY,
        _said("Memory events come with the host tracer (host_tracer_level=2)."),
    ),
    Need.MEMORY_CAPACITY: (_NAME_DEVICE,),
    Need.BARRIERS: _NONE,
    Need.TILED_LAYOUTS: (_said("Tiled layouts appear in TPU profiles only."),),
    Need.MATRIX_UNIT: (_said("Profiles of TPUs state it."),),
    Need.OPERATOR_SUMS: (_said("Record an xplane, with TensorFlow 2.4 or later."),),
    Need.COPIES: _NONE,
    Need.HOST_MEMORY: (
        _said("The recorder does not state the memory of each copy. A newer version may."),
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
        _said(
            "Watch the devices' monitor while the program runs: it shows what all processes use."
        ),
    ),
    Need.STEP_ENDS: _NONE,
    Need.ALL_RANKS: (
        _said("Record all ranks in the same steps, and put their traces into one directory."),
    ),
    Need.COLLECTIVE_SIZES: _WITH_SIZES,
    Need.SENT_SIZES: (
        *SHAPES[:-1],
        _torch("Record with record_shapes=True, on PyTorch 2.1 or later."),
        *_NONE,
    ),
    Need.LINK_BANDWIDTH: (_said("Give the link's bandwidth with --link-bandwidth."),),
}


def hint_for(need: Need, workload: Workload) -> str:
    """How to record what is missing, in the program's terms; empty if nothing helps."""
    return first_fitting(HINTS[need], workload)


def first_fitting(hints: tuple[Hint, ...], workload: Workload) -> str:
    """The first hint that fits. A program of an unknown framework gets one for all of them."""
    return next(
        (
            hint.text
            for hint in hints
            if hint.framework in ("", workload.base) and hint.fits(workload)
        ),
        "",
    )
