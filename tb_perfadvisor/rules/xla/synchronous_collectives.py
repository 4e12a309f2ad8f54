"""Collectives that are started and awaited with nothing computed in between."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.tpu.async_pairs import async_pairs
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import intersect, overlap_ns, total_ns, union


class SynchronousCollectives(Rule):
    """Asynchronous collectives have nothing to overlap with.

    What it finds
    -------------
    Collectives of a TPU that are split into a start and a done, between which the core computes
    next to nothing.

    Why it matters
    --------------
    The split exists to hide the transfer behind compute. If the done follows its start immediately,
    the core waits for the whole transfer, as if the collective were synchronous.

    How it is measured
    ------------------
    Each done is matched with the start that it names. For pairs whose transfer is hardly overlapped
    by compute, high is their exposed communication. Expected is half of it, limited by the compute
    that the step has to hide it, because part of the wait may be for other cores and the next
    operation may need the result. Low is 0.

    When to ignore
    --------------
    When every following operation needs the result, as after the last layer.

    How to verify
    -------------
    Other operations run between start and done, and the done takes little time.

    References:
    ----------
    OpenXLA, "Operation semantics", on asynchronous collectives; Wang et al., "Overlap
    communication with dependent computation via decomposition" (ASPLOS 2023).
    """

    id = "synchronous-collectives"
    title = "Overlap asynchronous collectives with compute"
    category = "xla"
    refines = "exposed-communication"
    needs = (Need.DEVICE_EVENTS, Need.COLLECTIVES, Need.TILED_LAYOUTS)

    maximum_hidden_share = Limit(
        0.1, "share", "With less overlap, almost nothing of the transfer is hidden."
    )
    minimum_share = Limit(
        0.02, "share", "The last collective of a step has no compute left to overlap with."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when pairs with nothing in between take a good part of the step."""
        trace, pairs, attribution = signals.trace, async_pairs(signals), signals.attribution
        events = trace.events
        whole_ns = pairs.between_ns + events.duration_ns[pairs.done]
        is_bare = events.kind[pairs.done] == EventKind.COLLECTIVE
        is_bare &= pairs.hidden_ns <= self.maximum_hidden_share * whole_ns
        done = pairs.done[is_bare]
        claims = intersect(
            attribution.intervals[Cause.COMMUNICATION],
            union(events.start_ns[done], events.end_ns[done]),
        )
        waited_ns = total_ns(claims)
        if self.is_minor(waited_ns, signals):
            return
        cost_ns = overlap_ns(claims, events.start_ns[done], events.end_ns[done])
        hideable_ns = min(waited_ns, attribution.window_ns - waited_ns)
        yield Finding(
            instance=count_per_step(len(done), "collective", signals),
            summary=(
                f"{per_step(waited_ns, signals)} is spent waiting for collectives with nothing"
                " computed between start and done"
                f" ({count_per_step(len(done), 'such collective', signals)})."
            ),
            saving=Saving(0, hideable_ns // 2, waited_ns, claims, "heuristic"),
            evidence=(
                events_by_name(
                    "Collectives with nothing computed between start and done",
                    "Operation",
                    trace,
                    done,
                    (
                        (Column("between_ns", "Start to done", "ns"), pairs.between_ns[is_bare]),
                        (Column("waited_ns", "Waited", "ns"), cost_ns),
                    ),
                ),
                costliest("Longest waits", signals.worker, done.astype(np.int32), cost_ns),
            ),
            remedies=advise("tpu-latency-hiding", "unrolled-gathers", "bucketed-gradients"),
        )
