"""Why a rank is late, in words, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.input.host_cores import OWN_CORES
from tb_perfadvisor.rules.remedies.input.loading import EVEN_INPUT, EVEN_INPUT_ANYWHERE
from tb_perfadvisor.rules.remedies.variants import variants
from tb_perfadvisor.signals import Cause
from tb_perfadvisor.signals.core.causes import COMPUTE, LABELS
from tb_perfadvisor.signals.ranks.stragglers import Excess
from tb_perfadvisor.signals.workload.parts import Part
from tb_perfadvisor.units import format_duration

_SAME_WORK = "Let every rank do the same work in each step. Move what one rank does for all "
_ON_HOST = variants(
    "work-of-one-rank",
    Remedy(
        text=_SAME_WORK
        + "(logging, checkpoints, evaluation) to another thread, or do it every hundredth step.",
        snippet=(
            "if rank == 0 and step % 100 == 0:\n"
            "    background.submit(write_metrics, step, loss.detach().clone())"
        ),
        needs=(Part.TRAINING,),
        reference="https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
    Remedy(
        text=_SAME_WORK
        + "(logging, checkpoints, evaluation) to another thread, or do it every hundredth step.",
        snippet=(
            "if jax.process_index() == 0 and step % 100 == 0:\n"
            "    background.submit(write_metrics, step, metrics)  # fetched in the background"
        ),
        framework="jax",
        reference="https://docs.jax.dev/en/latest/async_dispatch.html",
    ),
    Remedy(
        text=_SAME_WORK + "(checkpoints, evaluation) out of the steps.",
        snippet=(
            'checkpoints = tf.keras.callbacks.ModelCheckpoint(path, save_freq="epoch")\n'
            "model.fit(dataset, callbacks=[checkpoints] if is_chief else [])"
        ),
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/distributed_training",
    ),
    Remedy(text=_SAME_WORK + "(logging, requests, text processing) to another process."),
    framework="",
)
_EVEN_WORK = variants(
    "even-work",
    Remedy(
        text="Spread the work evenly: give every rank the same number of samples, and of tokens or "
        "pixels.",
        snippet=(
            "order = sorted(range(len(dataset)), key=lengths.__getitem__)\n"
            "batches = [order[at : at + world_size * size] for at in starts]\n"
            "random.Random(epoch).shuffle(batches)  # the same on every rank\n"
            "rank_batches = [batch[rank::world_size] for batch in batches]\n"
            "loader = DataLoader(dataset, batch_sampler=rank_batches)"
        ),
        framework="pytorch",
        needs=(Part.LOADER,),
        reference="https://pytorch.org/docs/stable/data.html#torch.utils.data.Sampler",
    ),
    Remedy(
        text="Spread the work evenly: give every rank the same number of samples, and of tokens or "
        "pixels.",
    ),
    framework="",
)
_THROTTLED = (
    "Check whether the late rank's device is throttled, or whether another program uses it as well."
)
_COMPUTE = variants(
    "device-clocks",
    Remedy(
        text=_THROTTLED,
        snippet="nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE",
        language="bash",
        needs=(Part.NVIDIA,),
        reference="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
    ),
    Remedy(
        text=_THROTTLED,
        snippet="amd-smi metric --clock --temperature --power",
        language="bash",
        needs=(Part.AMD,),
        reference="https://rocm.docs.amd.com/projects/amdsmi/en/latest/how-to/amdsmi-cli-tool.html",
    ),
    Remedy(text=_THROTTLED),
    framework="",
)
_REASONS = {
    Cause.INPUT: "waiting for input",
    Cause.BETWEEN_STEPS: "code that runs between steps",
    Cause.UNEXPLAINED: "host code that was not recorded",
    Cause.PYTHON: "Python code",
    Cause.FRAMEWORK: "the framework's host code",
    Cause.SYNCHRONIZATION: "waiting for the device",
}


def is_preempted(excess: Sequence[Excess], preempted_ns: float) -> bool:
    """Whether most of the extra time passes while host calls have lost their core.

    Args:
        excess: Where the late rank spends more time than the others, the longest first.
        preempted_ns: What of it passes while its host calls have lost their core, per step.
    """
    return 2 * preempted_ns >= sum(item.own_ns - item.others_ns for item in excess) > 0


def reason_of(excess: Sequence[Excess], preempted_ns: float) -> str:
    """Why the rank is late, in words: "because of …" what takes most of the extra time.

    Args:
        excess: Where the late rank spends more time than the others, the longest first.
        preempted_ns: What of it passes while its host calls have lost their core, per step.
    """
    if is_preempted(excess, preempted_ns):
        return (
            "because the operating system took the core from the launching thread (host-preempted:"
            f" {format_duration(preempted_ns)} more idle time per step)"
        )
    first = excess[0]
    more = format_duration(first.own_ns - first.others_ns)
    name = _REASONS.get(first.cause) or LABELS[first.cause].lower()
    reason = f"because of {name} ({more} more per step)"
    if first.work is None:
        return reason
    return f"{reason}: it has {first.work:.1f} times the work of the others"


def remedies_for(excess: Sequence[Excess], preempted_ns: float) -> tuple[Remedy, ...]:
    """Remedies for what makes the rank late, the most specific first.

    Args:
        excess: Where the late rank spends more time than the others, the longest first.
        preempted_ns: What of it passes while its host calls have lost their core, per step.
    """
    if is_preempted(excess, preempted_ns):
        return OWN_CORES
    first = excess[0].cause if excess else Cause.UNEXPLAINED
    if first is Cause.INPUT:
        return (EVEN_INPUT, EVEN_INPUT_ANYWHERE, *_ON_HOST)
    if excess and excess[0].work is not None:
        return (*_EVEN_WORK, *_ON_HOST)
    if first in COMPUTE:
        return (*_COMPUTE, *_EVEN_WORK, *_ON_HOST)
    return _ON_HOST
