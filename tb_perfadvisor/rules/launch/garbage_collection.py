"""Python's garbage collector runs during the steps."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.host.garbage_collection import garbage_collections
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace.intervals import intersect, overlap_ns, total_ns
from tb_perfadvisor.whatif import Remove


class GarbageCollection(Rule):
    """The device waits while Python collects garbage.

    What it finds
    -------------
    Idle time of the device (or of the program's operators) while Python's cyclic garbage collector
    runs, automatically or called by `gc.collect()`, as recorded in the profile.

    Why it matters
    --------------
    A full collection looks at every object of the process and holds the interpreter's lock: tens
    to hundreds of milliseconds in a training program. Each rank collects at a different time, and
    the others wait each time.

    How it is measured
    ------------------
    From the recorded frames of the collector: high is the idle time during them; low and expected
    do without the estimated cost of recording. If the collector was not recorded, nothing is
    guessed: its pauses count as unrecorded code.

    When to ignore
    --------------
    When memory grows without the collections: then find the reference cycles that they break.

    How to verify
    -------------
    A new profile that records Python's collector has no collection in its steps.

    References:
    ----------
    Python documentation, gc; PyTorch documentation, torch.profiler, experimental configuration
    record_python_gc_info.
    """

    id = "garbage-collection"
    title = "Collect garbage between steps, not in them"
    category = "launch"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.PYTHON_FRAMES)
    is_preview = False

    minimum_share = Limit(
        0.01, "share", "Collecting young objects takes less than 1 % and pays off."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the step waits for collections."""
        trace, window = signals.trace, signals.attribution
        events, (rows, collecting) = trace.events, garbage_collections(signals)
        claims = intersect(
            window.of(
                Cause.BETWEEN_STEPS,
                Cause.LAUNCHING,
                Cause.FRAMEWORK,
                Cause.PYTHON,
                Cause.UNEXPLAINED,
            ),
            collecting,
        )
        total = total_ns(claims)
        if self.is_minor(total, signals):
            return
        idle = overlap_ns(claims, events.start_ns[rows], events.end_ns[rows])
        rows, idle = rows[idle > 0], idle[idle > 0]
        recording_ns = profiler_overhead(signals).within_ns(claims)
        subject = "No operator runs" if signals.device.is_host_only else "The device idles"
        yield Finding(
            instance=count_per_step(len(rows), "collection", signals),
            summary=(
                f"{subject} for {per_step(total, signals)} while Python collects garbage"
                f" ({count_per_step(len(rows), 'collection', signals)})."
            ),
            saving=Saving(
                max(total - recording_ns, 0), total, total, claims, "measured", (Remove(claims),)
            ),
            evidence=(
                events_by_name(
                    "Collections",
                    "Event",
                    trace,
                    rows,
                    ((Column("idle_ns", "Device idle", "ns"), idle),),
                ),
                costliest("Longest collections", signals.worker, rows, idle),
            ),
            remedies=advise("planned-collection", "no-collect-calls"),
        )
