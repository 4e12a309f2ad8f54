"""Ranks that the others wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tb_perfadvisor.rules.base import (
    Finding,
    Limit,
    Remedy,
    Rule,
    Saving,
    per_step,
    share_of_window,
)
from tb_perfadvisor.rules.evidence.evidence import Cell, Column, Evidence, Table, costliest
from tb_perfadvisor.rules.remedies import EVEN_INPUT
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.core.attribution import COMPUTE, LABELS
from tb_perfadvisor.signals.core.collectives import exposed_part
from tb_perfadvisor.signals.ranks.stragglers import Excess, Lateness, excess_of, lateness
from tb_perfadvisor.trace.intervals import EMPTY, total_ns
from tb_perfadvisor.units import format_duration

_ON_HOST = tuple(
    Remedy(
        text="Let every rank do the same work in each step; what one rank does for all (logging, "
        "checkpoints, evaluation) belongs into another thread, or to every hundredth step.",
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
            "    background.submit(write_metrics, step, metrics)  # fetched there, not here",
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
    text="Spread the work evenly: as many samples, and as many tokens or pixels, on every rank.",
    snippet=(
        "order = sorted(range(len(dataset)), key=lengths.__getitem__)\n"
        "batches = [order[at : at + world_size * size] for at in starts]\n"
        "random.Random(epoch).shuffle(batches)  # the same on every rank\n"
        "own = [batch[rank::world_size] for batch in batches]\n"
        "loader = DataLoader(dataset, batch_sampler=own)"
    ),
    framework="pytorch",
    reference="https://pytorch.org/docs/stable/data.html#torch.utils.data.Sampler",
)
_COMPUTE = Remedy(
    text="Give each rank equally long sequences or equally large images; if the work is the "
    "same, see whether the device is throttled.",
    snippet="nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE",
    language="bash",
    reference="https://docs.nvidia.com/deploy/nvidia-smi/index.html",
)


class Straggler(Rule):
    """Some ranks come late to collectives, and all others wait.

    What it finds
    -------------
    Ranks that arrive late in collectives step after step; how long the others wait for them,
    and where the late ones spend more time than the others.

    Why it matters
    --------------
    A collective ends when its last rank has come. One slow rank makes every rank as slow, and
    in their profiles it looks like slow communication, which no faster network mends.

    How it is measured
    ------------------
    Collectives are matched over all ranks of their group; what a rank waits in one is its
    duration less the shortest. Late is who waits less than a quarter of what the middle rank
    waits; named is who does so in half of the steps and for twice its equal share of all
    waiting, and whose lateness less its own waits stands out from its spread over the steps
    (Student's test, one-sided, 5 %): ranks that come late in turns are none. What the middle
    rank waits with nothing to cover it is what would be saved if they came with the others; what
    the late rank spends more than the median of those in time is the other measure: expected is
    the smaller of the two, high the larger. Ranks that share the cores of one host take turns,
    so a longer computation there counts for nothing; and there a rank is named, too, that spends
    as much more on anything else, step after step. Where shapes were recorded, the matrix products
    tell whether a rank computes longer because it has more to compute: that counts on any host,
    and expected is what an equal share of all ranks' work would save.

    When to ignore
    --------------
    When the profiled steps held something rare on one rank, such as a checkpoint.

    How to verify
    -------------
    The others' collectives shorten to the late rank's, and the steps by as much.

    References:
    ----------
    Holistic Trace Analysis, "Straggler analysis"; Lin et al., "Understanding Stragglers in
    Large Model Training Using What-if Analysis" (OSDI 2025).
    """

    id = "straggler"
    title = "Speed up the ranks that the others wait for"
    category = "communication"
    needs = (Need.WORK, Need.COLLECTIVES, Need.ALL_RANKS)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Ranks never arrive together to the microsecond; a twentieth is no jitter."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when late ranks cost a good part of the step."""
        found = lateness(signals)
        if found is None or not found.late:
            return
        worst = signals.worker if signals.worker in found.late else found.late[0]
        excess = excess_of(signals.ranks, worst, found.late)
        waited_ns, saving = _saving(signals, found, excess)
        if share_of_window(saving.expected_ns, signals) < self.limit("minimum_share"):
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
            evidence=_evidence(signals, found, excess, worst),
            remedies=_remedies(excess),
            ranks=tuple(
                rank
                for rank in (signals.ranks.sources[one].rank for one in found.late)
                if rank is not None
            ),
        )


def _saving(signals: Signals, found: Lateness, excess: Sequence[Excess]) -> tuple[int, Saving]:
    """How long the others wait for what the late rank spends more, and what it would save.

    Work that is spread evenly makes the others as late as it makes the late one early; and
    samples and sequences can't be cut in two, so that low is half of that.
    """
    attribution, count = signals.attribution, signals.steps.count
    explained_ns = round(count * sum(one.own_ns - one.others_ns for one in excess))
    evened_ns = round(count * sum(one.own_ns - one.even_ns for one in excess))
    if signals.worker in found.late:
        claims = attribution.of(*(one.cause for one in excess)) if excess else EMPTY
        waited = [int(one.sum()) for one in (found.own_low_ns, found.own_middle_ns)]
    else:
        claims = exposed_part(
            signals.trace, found.own_row, attribution.intervals[Cause.COMMUNICATION]
        )
        waited = [int(found.own_waiting_ns.sum())] * 2
    claimed_ns = total_ns(claims)
    low, middle = (min(one, explained_ns, claimed_ns) for one in waited)
    high = max(min(max(waited[1], explained_ns), claimed_ns), middle)
    if evened_ns == explained_ns:
        return middle, Saving(min(low, middle), middle, high, claims, "measured")
    expected = min(middle, evened_ns)
    return middle, Saving(expected // 2, expected, high, claims, "measured")


_REASONS = {
    Cause.INPUT: "waiting for input",
    Cause.BETWEEN_STEPS: "what runs between steps",
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
    return f"{name} ({more} more per step): it has {first.work:.1f} times the others' work to do"


def _named(signals: Signals, late: Sequence[int], most: int = 4) -> str:
    sources = signals.ranks.sources
    has_ranks = all(sources[one].rank is not None for one in late)
    texts = [str(sources[one].rank) if has_ranks else sources[one].host for one in late[:most]]
    noun = ("rank" if has_ranks else "host") + ("s" if len(late) > 1 else "")
    more = f" and {len(late) - most} more" if len(late) > most else ""
    return f"{noun} {', '.join(texts)}{more}"


def _evidence(
    signals: Signals, found: Lateness, excess: Sequence[Excess], worst: int
) -> tuple[Evidence, ...]:
    steps = signals.steps.count
    order = sorted(range(len(signals.ranks)), key=lambda one: (-int(found.late_ns[one]), one))
    rows: list[tuple[Cell, ...]] = [
        (
            _named(signals, (one,)),
            int(found.times_late[one]),
            int(found.late_ns[one]) // steps,
            int(found.waiting_ns[one]) // steps,
        )
        for one in order
    ]
    tables: list[Evidence] = [
        Table(
            "Who waits for whom",
            (
                Column("worker", "Rank"),
                Column("times_late", "Times late", "count"),
                Column("late_ns", "Others wait for it, per step", "ns"),
                Column("waiting_ns", "It waits itself, per step", "ns"),
            ),
            tuple(rows),
        )
    ]
    if excess:
        tables.append(
            Table(
                f"Where {_named(signals, (worst,))} spends more, per step",
                (
                    Column("cause", "Cause"),
                    Column("own_ns", "Late rank", "ns"),
                    Column("others_ns", "Median of the others", "ns"),
                    Column("more_ns", "More", "ns"),
                ),
                tuple(
                    (
                        LABELS[one.cause],
                        round(one.own_ns),
                        round(one.others_ns),
                        round(one.own_ns - one.others_ns),
                    )
                    for one in excess
                ),
            )
        )
    if found.own_row.size:
        waited = found.own_middle_ns if signals.worker in found.late else found.own_waiting_ns
        tables.append(
            costliest(
                "The collectives with the longest waiting", signals.worker, found.own_row, waited
            )
        )
    return tuple(tables)


def _remedies(excess: Sequence[Excess]) -> tuple[Remedy, ...]:
    """What fits where the time goes, that first."""
    first = excess[0].cause if excess else Cause.UNEXPLAINED
    if first is Cause.INPUT:
        return (EVEN_INPUT, *_ON_HOST)
    if excess and excess[0].work is not None:
        return (_EVEN_WORK, *_ON_HOST)
    if first in COMPUTE:
        return (_COMPUTE, *_ON_HOST)
    return _ON_HOST
