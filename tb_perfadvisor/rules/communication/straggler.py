"""Ranks that arrive late in collectives and hold up the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import (
    Cell,
    Column,
    Evidence,
    Finding,
    Remedy,
    Saving,
    Table,
    costliest,
)
from tb_perfadvisor.rules.remedies import EVEN_INPUT
from tb_perfadvisor.signals import Cause, Need, Signals, ranks_of
from tb_perfadvisor.signals.core.attribution import COMPUTE, LABELS
from tb_perfadvisor.signals.core.collectives import exposed_part
from tb_perfadvisor.signals.ranks.stragglers import Excess, Lateness, excess_of, lateness
from tb_perfadvisor.trace.intervals import EMPTY, total_ns
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


class Straggler(Rule):
    """Some ranks arrive late in collectives, and all others wait for them.

    What it finds
    -------------
    Ranks that arrive late in collectives step after step, how long the others wait for them, and
    where the late ranks spend more time than the others.

    Why it matters
    --------------
    A collective ends only after its last rank has arrived. One slow rank makes every rank as slow,
    and in the profiles of the others it looks like slow communication, which no faster network
    fixes.

    How it is measured
    ------------------
    Collectives are matched across all ranks of their group. A rank's wait in a collective is its
    duration there minus the shortest one. A rank is late if it waits less than a quarter of what
    the median rank waits. It is reported if it is late in half of the steps, causes at least twice
    its equal share of all waiting, and if that, minus its own waits, stands out from its variation
    over the steps (one-sided Student's t-test, 5 %); ranks that take turns being late are not
    stragglers.

    There are two measures of the saving: the exposed wait of the median rank, and the time that the
    late rank spends beyond the median of the other ranks. Expected is the smaller, high the larger.
    Ranks that share the cores of one host take turns computing, so longer compute does not count
    there; instead, a rank is also reported if it consistently spends that much more on anything
    else. Where shapes were recorded, the matrix products show whether a rank computes longer
    because it has more work. That counts on any host, and expected is what an equal share of all
    ranks' work would save.

    When to ignore
    --------------
    When the profiled steps contain something rare on one rank, such as a checkpoint.

    How to verify
    -------------
    The other ranks' collectives become as short as those of the late rank, and the steps shorter by
    as much.

    References:
    ----------
    Holistic Trace Analysis, "Straggler analysis"; Lin et al., "Understanding Stragglers in
    Large Model Training Using What-if Analysis" (OSDI 2025).
    """

    id = "straggler"
    title = "Speed up the ranks that hold up the others"
    category = "communication"
    needs = (Need.WORK, Need.COLLECTIVES, Need.ALL_RANKS)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Ranks never arrive at exactly the same time; this much is not jitter."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when late ranks cost a good part of the step."""
        found = lateness(signals)
        if found is None or not found.late:
            return
        latest = signals.worker if signals.worker in found.late else found.late[0]
        excess = excess_of(ranks_of(signals), latest, found.late)
        waited_ns, saving = _saving(signals, found, excess)
        if self.is_minor(saving.expected_ns, signals):
            return
        names = _named(signals, found.late)
        why = f", mostly because of {_reason(excess)}" if excess else ""
        yield Finding(
            summary=(
                f"The other ranks wait {per_step(waited_ns, signals)} for {names}, late in"
                f" {int(found.times_late[list(found.late)].max()):,} of {found.collectives:,}"
                f" collectives{why}."
            ),
            saving=saving,
            evidence=_evidence(signals, found, excess, latest),
            remedies=_remedies(excess),
            ranks=tuple(
                rank
                for rank in (ranks_of(signals).sources[index].rank for index in found.late)
                if rank is not None
            ),
        )


def _saving(signals: Signals, found: Lateness, excess: Sequence[Excess]) -> tuple[int, Saving]:
    """How long the others wait for the extra time of the late rank, and what that would save.

    Spreading work evenly delays the others by as much as it speeds up the late rank. Samples and
    sequences cannot be split, so the low end is half of that.
    """
    attribution, count = signals.attribution, signals.steps.count
    explained_ns = round(count * sum(item.own_ns - item.others_ns for item in excess))
    evened_ns = round(count * sum(item.own_ns - item.even_ns for item in excess))
    if signals.worker in found.late:
        claims = attribution.of(*(item.cause for item in excess)) if excess else EMPTY
        waited = [int(waits.sum()) for waits in (found.own_low_ns, found.own_middle_ns)]
    else:
        claims = exposed_part(
            signals.trace, found.own_row, attribution.intervals[Cause.COMMUNICATION]
        )
        waited = [int(found.own_waiting_ns.sum())] * 2
    claimed_ns = total_ns(claims)
    low, middle = (min(wait_ns, explained_ns, claimed_ns) for wait_ns in waited)
    high = max(min(max(waited[1], explained_ns), claimed_ns), middle)
    if evened_ns == explained_ns:
        return middle, Saving(min(low, middle), middle, high, claims, "measured")
    expected = min(middle, evened_ns)
    return middle, Saving(expected // 2, expected, high, claims, "measured")


_REASONS = {
    Cause.INPUT: "waiting for input",
    Cause.BETWEEN_STEPS: "code that runs between steps",
    Cause.UNEXPLAINED: "host code that was not recorded",
    Cause.PYTHON: "Python code",
    Cause.FRAMEWORK: "the framework's host code",
    Cause.SYNCHRONIZATION: "waiting for the device",
}


def _reason(excess: Sequence[Excess]) -> str:
    first = excess[0]
    more = format_duration(first.own_ns - first.others_ns)
    name = _REASONS.get(first.cause) or LABELS[first.cause].lower()
    if first.work is None:
        return f"{name} ({more} more per step)"
    return f"{name} ({more} more per step): it has {first.work:.1f} times the work of the others"


def _named(signals: Signals, late: Sequence[int], most: int = 4) -> str:
    sources = ranks_of(signals).sources
    has_ranks = all(sources[index].rank is not None for index in late)
    texts = [str(sources[i].rank) if has_ranks else sources[i].host for i in late[:most]]
    noun = ("rank" if has_ranks else "host") + ("s" if len(late) > 1 else "")
    more = f" and {len(late) - most} more" if len(late) > most else ""
    return f"{noun} {', '.join(texts)}{more}"


def _evidence(
    signals: Signals, found: Lateness, excess: Sequence[Excess], latest: int
) -> tuple[Evidence, ...]:
    steps = signals.steps.count
    order = sorted(range(len(ranks_of(signals))), key=lambda i: (-int(found.late_ns[i]), i))
    rows: list[tuple[Cell, ...]] = [
        (
            _named(signals, (index,)),
            int(found.times_late[index]),
            int(found.late_ns[index]) // steps,
            int(found.waiting_ns[index]) // steps,
        )
        for index in order
    ]
    tables: list[Evidence] = [
        Table(
            "Late and waiting ranks",
            (
                Column("worker", "Rank"),
                Column("times_late", "Times late", "count"),
                Column("late_ns", "Delays others, per step", "ns"),
                Column("waiting_ns", "Waits, per step", "ns"),
            ),
            tuple(rows),
        )
    ]
    if excess:
        tables.append(
            Table(
                f"Where {_named(signals, (latest,))} spends more time, per step",
                (
                    Column("cause", "Activity"),
                    Column("own_ns", "Late rank", "ns"),
                    Column("others_ns", "Median of other ranks", "ns"),
                    Column("more_ns", "Difference", "ns"),
                ),
                tuple(
                    (
                        LABELS[item.cause],
                        round(item.own_ns),
                        round(item.others_ns),
                        round(item.own_ns - item.others_ns),
                    )
                    for item in excess
                ),
            )
        )
    if found.own_row.size:
        waited = found.own_middle_ns if signals.worker in found.late else found.own_waiting_ns
        tables.append(
            costliest(
                "The collectives with the longest waits", signals.worker, found.own_row, waited
            )
        )
    return tuple(tables)


def _remedies(excess: Sequence[Excess]) -> tuple[Remedy, ...]:
    """Remedies for what makes the rank late, the most specific first."""
    first = excess[0].cause if excess else Cause.UNEXPLAINED
    if first is Cause.INPUT:
        return (EVEN_INPUT, *_ON_HOST)
    if excess and excess[0].work is not None:
        return (_EVEN_WORK, *_ON_HOST)
    if first in COMPUTE:
        return (_COMPUTE, *_ON_HOST)
    return _ON_HOST
