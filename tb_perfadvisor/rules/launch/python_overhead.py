"""Long stretches of host code in the middle of steps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import (
    Cell,
    Column,
    Evidence,
    Finding,
    Remedy,
    Saving,
    Span,
    Table,
    costliest,
)
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.host.idle_owners import STALLING, IdleOwner, idle_without
from tb_perfadvisor.signals.host.launch_gaps import LONGEST_LAUNCH_GAP_NS, short_and_long_gaps
from tb_perfadvisor.signals.host.self_time import SelfTime, self_time
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import (
    Intervals,
    intersect,
    join,
    overlap_ns,
    total_ns,
)
from tb_perfadvisor.whatif import Remove

_FEWEST_STALLS = 3
_REMEDIES = (
    Remedy(
        text="Move what needs no device out of the step: into the loader's workers, a thread, or "
        "every hundredth step.",
        snippet=(
            "class Samples(torch.utils.data.Dataset):\n"
            "    def __getitem__(self, index):\n"
            "        return prepare(self.raw[index])  # in the workers, while the device computes\n"
            "\n"
            "loader = DataLoader(Samples(), num_workers=8, pin_memory=True)"
        ),
        framework="pytorch",
        reference="https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
    Remedy(
        text="Keep Python out of the step: prepare in tf.data, and compute under tf.function.",
        snippet=(
            "dataset = dataset.map(prepare, num_parallel_calls=tf.data.AUTOTUNE)\n"
            "dataset = dataset.prefetch(tf.data.AUTOTUNE)"
        ),
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/function",
    ),
    Remedy(
        text="Dispatch the next step before doing other work: a jitted call returns at once, and "
        "the host's work then runs beside the device's.",
        snippet=(
            "state, loss = train_step(state, batch)   # returns before it is computed\n"
            "batch = jax.device_put(next(batches))    # meanwhile\n"
            "if step % 100 == 0:\n"
            "    print(float(loss))                   # waits"
        ),
        framework="jax",
        reference="https://docs.jax.dev/en/latest/async_dispatch.html",
    ),
)


class PythonOverhead(Rule):
    """The device idles for long stretches while the host runs Python and launches nothing.

    What it finds
    -------------
    Idle gaps of more than two milliseconds in the middle of most steps, in which the host is in
    Python or in framework code and launches nothing: data handling, bookkeeping, sleeping. With
    PyTorch on the CPU, where every operator is recorded, of more than three tenths of one.

    Why it matters
    --------------
    No faster kernel and no faster launch shortens such a gap: only moving that code out of the
    step, or beside the device's work, does.

    How it is measured
    ------------------
    The exclusive idle time of the causes *Python*, *framework* and *unexplained* in gaps longer
    than those of slow launching, less what synchronizations induce, collections of garbage and
    collectives that run on the host; waiting for input and time between steps are others' causes.
    Expected is what was recorded of Python and framework code; low is that less what recording is
    estimated to cost; high adds what was not recorded. Where less than half was recorded, expected
    is half of the gaps, and a guess. Stretches in half of the steps or fewer are left to the rules
    on steps; of a single step low is nothing, since they may not come again.

    When to ignore
    --------------
    When the code is there for the profile alone, such as printing or checking results.

    How to verify
    -------------
    The code named here no longer stands between two launches, and the step is shorter by about
    its time.

    References:
    ----------
    PyTorch documentation, "Performance Tuning Guide"; JAX documentation, "Asynchronous dispatch".
    """

    id = "python-overhead"
    title = "Move host code out of the step"
    category = "launch"
    needs = (Need.WORK, Need.HOST_EVENTS)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Moving code about a program is worth it for a twentieth of the step."
    )
    minimum_stall_ns = Limit(
        LONGEST_LAUNCH_GAP_NS,
        "ns",
        "Shorter gaps are those of a host that launches, if slowly.",
    )
    minimum_python_ns = Limit(
        300_000,
        "ns",
        "Without a device PyTorch records every operator, views and checks as well: between two "
        "lie some 20 microseconds of Python, and after backward passes up to 200.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when most steps have long stretches of host code."""
        attribution = signals.attribution
        longest_ns = self.minimum_stall_ns
        if _records_all_operators(signals):
            longest_ns = min(longest_ns, self.minimum_python_ns)
        _, gaps = short_and_long_gaps(attribution.idle, longest_ns)
        recorded = attribution.of(Cause.PYTHON, Cause.FRAMEWORK)
        stalls = intersect(
            join(recorded, attribution.intervals[Cause.UNEXPLAINED]),
            idle_without(signals, IdleOwner.SYNCHRONIZATION, *STALLING),
        )
        # What of a gap is the host's own code must be long by itself.
        own_ns = overlap_ns(stalls, gaps[:, 0], gaps[:, 1])
        gaps = gaps[own_ns > longest_ns]
        claims = intersect(stalls, gaps)
        total = total_ns(claims)
        if self.is_minor(total, signals):
            return
        recurs = _recurs(signals, gaps)
        if not recurs and not _is_python_of_one_step(signals, claims):
            return
        named = intersect(claims, recorded)
        named_ns = total_ns(named)
        is_known = 2 * named_ns >= total
        recording_ns = profiler_overhead(signals).within_ns(named)
        own = self_time(signals.trace, signals.step_track, claims)
        what = f", mostly in {own.names[0]}" if is_known and own.names else ""
        subject = "No operator runs" if signals.device.is_host_only else "The device idles"
        yield Finding(
            summary=(
                f"{subject} for {per_step(total, signals)} in long stretches of host code"
                f" that launch nothing{what}."
            ),
            saving=Saving(
                max(named_ns - recording_ns, 0) if is_known and recurs else 0,
                named_ns if is_known else total // 2,
                total,
                claims,
                "measured" if is_known else "heuristic",
                (Remove(named),) if is_known else (),
            ),
            evidence=_evidence(signals, claims, total - named_ns, own),
            remedies=_REMEDIES,
        )


def _records_all_operators(signals: Signals) -> bool:
    """Whether what lies between two operators is Python: not so beside collectives' threads."""
    trace = signals.trace
    return (
        signals.device.is_host_only
        and trace.source.framework == "pytorch"
        and len(trace.rows(EventKind.HOST_COLLECTIVE)) == 0
    )


def _recurs(signals: Signals, gaps: Intervals) -> bool:
    """Whether this goes on, rather than having happened."""
    steps = signals.steps
    length = gaps[:, 1] - gaps[:, 0]
    if len(steps) <= 1:
        # One long stretch among short ones is what a program does once.
        return len(gaps) >= _FEWEST_STALLS and 2 * int(length.max()) <= int(length.sum())
    # A gap that reaches over a step's end belongs to the step that has most of it.
    step = np.searchsorted(steps.start_ns, gaps[:, 0] + length // 2, side="right")
    return bool(2 * len(distinct(step)) > len(steps))


def _is_python_of_one_step(signals: Signals, claims: Intervals) -> bool:
    """Whether a single step, marked by the program, runs Python where it stalls.

    What a program does once, such as loading a library or asking for memory, is mostly native.
    """
    steps = signals.steps
    python_ns = total_ns(intersect(claims, signals.attribution.intervals[Cause.PYTHON]))
    return len(steps) == 1 and not steps.is_inferred and 2 * python_ns > total_ns(claims)


def _evidence(
    signals: Signals, claims: Intervals, unnamed_ns: int, own: SelfTime
) -> tuple[Evidence, ...]:
    trace = signals.trace
    start, end = claims[(claims[:, 1] - claims[:, 0]).argmax()].tolist()
    track = signals.step_track
    label = trace.text(int(trace.tracks.label[track])) if track >= 0 else ""
    rows: list[tuple[Cell, ...]] = list(zip(own.names, own.count, own.self_ns, strict=True))
    if unnamed_ns:
        rows.append(("(nothing recorded inside: Python or native code)", None, unnamed_ns))
    table = Table(
        "What the host was in, without what that called",
        (
            Column("name", "Code"),
            Column("count", "Times", "count"),
            Column("own_ns", "Idle meanwhile", "ns"),
        ),
        tuple(rows),
    )
    span = Span("The longest stretch", signals.worker, start, end, label, "nothing is launched")
    if not own.names:
        return (span, table)
    return (
        span,
        table,
        costliest("The longest of them", signals.worker, own.rows, own.row_self_ns),
    )
