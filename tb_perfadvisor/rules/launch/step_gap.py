"""Idle gaps between steps."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.host_code import host_code_table, longest_stretch
from tb_perfadvisor.rules.evidence.made import step_loops
from tb_perfadvisor.rules.evidence.server_steps import server_phases
from tb_perfadvisor.rules.finding import (
    Column,
    Evidence,
    Finding,
    Saving,
    costliest,
)
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.core.host_activity import HostActivity, host_activity
from tb_perfadvisor.signals.steps.around_steps import (
    evaluation_between_steps,
    work_between_steps,
)
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, join, total_ns
from tb_perfadvisor.whatif import Remove


class StepGap(Rule):
    """The device idles between the last work of a step and the first work of the next.

    What it finds
    -------------
    Idle gaps between steps, and what the host did in them: callbacks, logging, metrics,
    checkpoints, evaluation, `.item()`.

    Why it matters
    --------------
    Nothing is queued between steps, so each microsecond of bookkeeping on the host is a
    microsecond of idle device in every step.

    How it is measured
    ------------------
    The idle time attributed to *between steps*: after the last backward, optimizer or zero-grad
    work of a step and before the next fetch or forward pass; with Keras and JAX also everything
    outside the step events. Waiting for input is not counted.

    Expected is what the steps save in a replay without the gaps. If there is no replay, it is the
    part of the gaps in which the profile shows what the host was doing, and half of the rest; on
    the CPU, all of the gaps. Low is the larger of two amounts: the part of the gaps in which the
    profile shows what the host was doing, and what would be hidden if that work overlapped the rest
    of the step, minus ordinary bookkeeping.

    On the CPU, operators also compute between steps. Those in named ranges, and those from the
    first to the last matrix product without a backward node, are expected to go as well, because
    validation is not part of the step. High adds everything that operators compute there except
    the next forward pass: they may belong to a checkpoint, to metrics, or to an average of the
    weights.

    When to ignore
    --------------
    When a checkpoint or an evaluation happened during the few profiled steps but is rare in a full
    run: divide the saving by how rarely it happens.

    How to verify
    -------------
    Disable the callbacks for one profile: the gap closes. After the change, the time between steps
    falls, and the step time falls with it.

    References:
    ----------
    TensorFlow guide, "Optimize TensorFlow GPU performance with the TensorFlow Profiler", section
    on gaps between steps.
    """

    id = "step-gap"
    title = "Close the gap between steps"
    category = "launch"
    reads_sums = True
    needs = (Need.WORK, Need.HOST_EVENTS, Need.STEPS, Need.STEP_ENDS)
    is_preview = False

    minimum_share = Limit(
        0.02,
        "share",
        "The loop's bookkeeping takes up to 2 % of a short step in a healthy program.",
    )
    minimum_gap_ns = Limit(20_000, "ns", "The first launch of a step costs up to 20 microseconds.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the gaps are large enough."""
        claims = signals.attribution.intervals[Cause.BETWEEN_STEPS]
        claims = claims[claims[:, 1] - claims[:, 0] >= self.minimum_gap_ns]
        gap_ns = total_ns(claims)
        if gap_ns == 0:
            return
        work = work_between_steps(signals) if signals.device.is_host_only else EMPTY
        evaluating_ns = total_ns(evaluation_between_steps(signals)) if len(work) else 0
        if self.is_minor(gap_ns + evaluating_ns, signals):
            return
        activity = host_activity(signals.trace, signals.step_track, claims)
        claimed = join(claims, work)
        window_ns = signals.attribution.window_ns
        bookkeeping_ns = round(self.minimum_share * window_ns)
        shown_ns = total_ns(activity.covered)
        low_ns = max(shown_ns, min(gap_ns, window_ns - gap_ns) - bookkeeping_ns)
        on_cpu = signals.device.is_host_only
        subject = "No operator runs" if on_cpu else "The device idles"
        is_explained = bool(activity.names) and 2 * activity.inside_ns[0] > gap_ns
        what = f", mostly in {activity.names[0]}" if is_explained else ""
        yield Finding(
            instance=activity.names[0]
            if is_explained
            else per_step(gap_ns + evaluating_ns, signals),
            summary=(
                f"{subject} between steps for {per_step(gap_ns, signals)}{what}"
                f"{_evaluation_clause(evaluating_ns, signals)}."
            ),
            saving=Saving(
                low_ns,
                gap_ns + evaluating_ns if on_cpu else max((shown_ns + gap_ns) // 2, low_ns),
                total_ns(claimed),
                claimed,
                "measured",
                (Remove(claims),),
            ),
            evidence=_evidence(signals, claims, activity),
            remedies=advise(
                "read-rarely", "read-arrays-rarely", "overlapped-schedule", "steps-per-call"
            ),
        )


def _evaluation_clause(evaluating_ns: int, signals: Signals) -> str:
    if evaluating_ns == 0:
        return ""
    return f"; other work, such as evaluation, takes another {per_step(evaluating_ns, signals)}"


def _evidence(signals: Signals, claims: Intervals, activity: HostActivity) -> tuple[Evidence, ...]:
    duration = signals.trace.events.duration_ns[activity.rows]
    return (
        longest_stretch("Longest gap", signals, claims, "no step code runs"),
        *server_phases(signals, claims),
        host_code_table(
            "Host activity in the gaps",
            "Activity",
            Column("inside_ns", "In the gaps", "ns"),
            activity,
            total_ns(claims) - total_ns(activity.covered),
        ),
        costliest("Longest activities in the gaps", signals.worker, activity.rows, duration),
        *step_loops(signals),
    )
