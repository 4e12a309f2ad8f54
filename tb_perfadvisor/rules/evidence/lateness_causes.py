"""Why a rank is late, in words, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies import EVEN_INPUT
from tb_perfadvisor.signals import Cause
from tb_perfadvisor.signals.core.attribution import COMPUTE, LABELS
from tb_perfadvisor.signals.ranks.stragglers import Excess
from tb_perfadvisor.units import format_duration

_ON_HOST = tuple(
    Remedy(
        text="Let every rank do the same work in each step. Move what one rank does for all "
        "(logging, checkpoints, evaluation) to another thread, or do it every hundredth step.",
        snippet=snippet,
        framework=framework,
        reference=reference,
    )
    for framework, snippet, reference in (
        (
            "pytorch",
            "if rank == 0 and step % 100 == 0:\n"
            "    background.submit(write_metrics, step, loss.detach().clone())",
            "https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        ),
        (
            "jax",
            "if jax.process_index() == 0 and step % 100 == 0:\n"
            "    background.submit(write_metrics, step, metrics)  # fetched in the background",
            "https://docs.jax.dev/en/latest/async_dispatch.html",
        ),
        (
            "tensorflow",
            'checkpoints = tf.keras.callbacks.ModelCheckpoint(path, save_freq="epoch")\n'
            "model.fit(dataset, callbacks=[checkpoints] if is_chief else [])",
            "https://www.tensorflow.org/guide/distributed_training",
        ),
    )
)
_EVEN_WORK = Remedy(
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
    reference="https://pytorch.org/docs/stable/data.html#torch.utils.data.Sampler",
)
_COMPUTE = Remedy(
    text="Give all ranks equally long sequences or equally large images. If the work is already "
    "the same, check whether the device is throttled.",
    snippet="nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE",
    language="bash",
    reference="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
)
_REASONS = {
    Cause.INPUT: "waiting for input",
    Cause.BETWEEN_STEPS: "code that runs between steps",
    Cause.UNEXPLAINED: "host code that was not recorded",
    Cause.PYTHON: "Python code",
    Cause.FRAMEWORK: "the framework's host code",
    Cause.SYNCHRONIZATION: "waiting for the device",
}


def reason_of(excess: Sequence[Excess]) -> str:
    """The activity that takes most of the extra time, with its time.

    Args:
        excess: Where the late rank spends more time than the others, the longest first.
    """
    first = excess[0]
    more = format_duration(first.own_ns - first.others_ns)
    name = _REASONS.get(first.cause) or LABELS[first.cause].lower()
    if first.work is None:
        return f"{name} ({more} more per step)"
    return f"{name} ({more} more per step): it has {first.work:.1f} times the work of the others"


def remedies_for(excess: Sequence[Excess]) -> tuple[Remedy, ...]:
    """Remedies for what makes the rank late, the most specific first.

    Args:
        excess: Where the late rank spends more time than the others, the longest first.
    """
    first = excess[0].cause if excess else Cause.UNEXPLAINED
    if first is Cause.INPUT:
        return (EVEN_INPUT, *_ON_HOST)
    if excess and excess[0].work is not None:
        return (_EVEN_WORK, *_ON_HOST)
    if first in COMPUTE:
        return (_COMPUTE, *_ON_HOST)
    return _ON_HOST
