"""How to choose the steps that are profiled: marked, enough, after the warm-up, and complete.

Sources: vllm/config/profiler.py; sglang/srt/managers/io_struct.py (ProfileReq);
megatron/training/arguments.py; torchtitan/tools/profiler.py;
lightning/pytorch/profilers/pytorch.py.
"""

from __future__ import annotations

from tb_perfadvisor.signals.workload.fit import Hint, hint, pytorch_hint
from tb_perfadvisor.signals.workload.workload import Part

_MORE_OF_VLLM = pytorch_hint(
    "Record more steps: pass --profiler-config.max_iterations=20 and "
    "--profiler-config.ignore_frontend=true to vllm serve. Recent releases annotate each step.",
    Part.VLLM,
)
_MORE_OF_SGLANG = pytorch_hint(
    'Record more steps: send "num_steps": 20 with the request to /start_profile. Recent releases '
    "annotate each step.",
    Part.SGLANG,
)
MARK_STEPS = (
    _MORE_OF_VLLM,
    _MORE_OF_SGLANG,
    pytorch_hint(
        "Record with --profile --use-pytorch-profiler, which marks the steps.",
        Part.MEGATRON,
    ),
    pytorch_hint(
        "Record with --profiler.enable_profiling, which marks the steps.", Part.TORCHTITAN
    ),
    pytorch_hint(
        "Record with Lightning's PyTorchProfiler, as Trainer(profiler=PyTorchProfiler()): it "
        "marks the steps.",
        Part.LIGHTNING,
    ),
    pytorch_hint(
        "Call the profiler's step() in on_step_end of a TrainerCallback that you pass to the "
        "Trainer.",
        Part.HF_TRAINER,
    ),
    pytorch_hint(
        "Call the profiler's step() in the pipeline's callback_on_step_end.",
        Part.DIFFUSERS,
    ),
    pytorch_hint("Call prof.step() after each call of the model.", Part.FORWARD_ONLY),
    pytorch_hint("Call prof.step() at the end of each training step."),
    hint(
        "Wrap each step: with tf.profiler.experimental.Trace('train', step_num=i, _r=1).",
        "tensorflow",
    ),
    hint("Wrap each step: with jax.profiler.StepTraceAnnotation('train', step_num=i).", "jax"),
    hint("Mark the steps in the training script."),
)
MORE_STEPS = (
    _MORE_OF_VLLM,
    _MORE_OF_SGLANG,
    pytorch_hint(
        "Record more steps: --profile-step-start 10 --profile-step-end 30.",
        Part.MEGATRON,
    ),
    pytorch_hint(
        "Record more steps: --profiler.profiler_active 20 --profiler.profile_freq 30.",
        Part.TORCHTITAN,
    ),
    pytorch_hint(
        "Record more steps: PyTorchProfiler(schedule=torch.profiler.schedule(wait=1, warmup=2, "
        "active=20)).",
        Part.LIGHTNING,
    ),
    pytorch_hint(
        "Record more steps: torch.profiler.schedule(wait=1, warmup=2, active=20).",
        Part.STEP_CALLS,
    ),
    hint("Record more steps: profile_batch=(10, 30).", "tensorflow"),
    hint("Record twenty steps or more."),
)
SKIP_WARM_UP = (
    pytorch_hint(
        "Skip the first steps: pass --profiler-config.delay_iterations=20 and "
        "--profiler-config.ignore_frontend=true to vllm serve, or send requests of the same kind "
        "before you start the profiler.",
        Part.VLLM,
    ),
    pytorch_hint(
        'Send requests of the same kind before you start the profiler, or send "start_step" with '
        "the request to /start_profile.",
        Part.SGLANG,
    ),
    pytorch_hint(
        "Profile later steps: --profile-step-start 20 --profile-step-end 30.",
        Part.MEGATRON,
    ),
    pytorch_hint(
        "Profile later steps: --profiler.profile_freq 30 --profiler.profiler_active 5.",
        Part.TORCHTITAN,
    ),
    pytorch_hint(
        "Skip the first steps: PyTorchProfiler(schedule=torch.profiler.schedule(skip_first=10, "
        "wait=1, warmup=3, active=5)).",
        Part.LIGHTNING,
    ),
    pytorch_hint(
        "Skip the first steps: pass schedule=torch.profiler.schedule(skip_first=10, wait=1, "
        "warmup=3, active=5).",
        Part.STEP_CALLS,
    ),
    pytorch_hint(
        "Call the pipeline with inputs of the same kind before you start the profiler.",
        Part.HF_PIPELINE,
    ),
    pytorch_hint("Call the pipeline once before you start the profiler.", Part.DIFFUSERS),
    hint(
        "Profile later steps: use TensorBoard(profile_batch=(10, 15)), or start the profiler after "
        "a few steps.",
        "tensorflow",
    ),
    hint("Run a few steps before jax.profiler.start_trace.", "jax"),
    hint("Run a few steps before recording."),
)


def _wait(begins: str, of_server: str) -> tuple[Hint, ...]:
    """How to let the device finish before the profiler `starts` or `stops`."""
    wait = f"Wait for the device before the profiler {begins}"
    results = "Call jax.block_until_ready on the last results before jax.profiler"
    return (
        pytorch_hint(of_server, Part.SERVER),
        pytorch_hint(f"{wait}: torch.cuda.synchronize().", Part.GPU),
        pytorch_hint(f"{wait}: torch.accelerator.synchronize()."),
        hint(f"{results}.{begins.removesuffix('s')}_trace.", "jax"),
        hint(f"{wait}."),
    )


WAIT_BEFORE = _wait("starts", "Start the server's profiler while no request runs.")
WAIT_AFTER = _wait("stops", "Stop the server's profiler after the last request has been answered.")
