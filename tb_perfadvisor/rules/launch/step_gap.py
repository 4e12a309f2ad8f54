"""Idle gaps between steps."""

from __future__ import annotations

from collections.abc import Iterable

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
from tb_perfadvisor.signals.core.host_activity import HostActivity, host_activity
from tb_perfadvisor.signals.steps.work_between_steps import (
    evaluation_between_steps,
    work_between_steps,
)
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, join, total_ns
from tb_perfadvisor.whatif import Remove

_REMEDIES = (
    Remedy(
        text=(
            "Log, save and evaluate every few hundred steps, and fetch metrics without waiting "
            "for the device in each step."
        ),
        snippet=(
            "running_loss += loss.detach()          # stays on the device\n"
            "if step % 100 == 0:\n"
            "    log(step, (running_loss / 100).item())  # one wait in a hundred steps\n"
            "    running_loss.zero_()"
        ),
        framework="pytorch",
        reference="https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
    Remedy(
        text="Run several steps per call, so that callbacks run once for all of them.",
        snippet=(
            "model.compile(optimizer=optimizer, loss=loss, steps_per_execution=50)\n"
            "# in callbacks: implement on_epoch_end rather than on_train_batch_end"
        ),
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/gpu_performance_analysis",
    ),
    Remedy(
        text="Do not read results back in each step: dispatch runs ahead as long as nobody asks.",
        snippet=(
            "state, metrics = train_step(state, batch)\n"
            "if step % 100 == 0:\n"
            "    log(step, jax.device_get(metrics))"
        ),
        framework="jax",
        reference="https://docs.jax.dev/en/latest/async_dispatch.html",
    ),
)


class StepGap(Rule):
    """The device idles between the last work of a step and the first of the next.

    What it finds
    -------------
    Idle gaps between steps, and what the host did in them: callbacks, logging, metrics,
    checkpoints, evaluation, `.item()`.

    Why it matters
    --------------
    Between steps nothing is queued, so every microsecond of bookkeeping on the host is a
    microsecond of idle device, in every step.

    How it is measured
    ------------------
    The exclusive time of the cause *between steps*: idle time after a step's last backward,
    optimizer or zero-grad work and before the next fetch or forward; with Keras and JAX also
    what lies outside the step events. Expected is what the steps save when they are re-timed
    without the gaps, or all of it. Low is the part in which the profile shows what the host was
    doing, or what can be hidden behind the rest of the step should it have to be done, but for a
    loop's own bookkeeping. On the CPU what is computed there in ranges that somebody has named,
    or from the first to the last product without a backward node, is expected to go as well:
    validation is none of the step's work. High is all of it, and on the CPU all that operators
    compute there other than the next forward pass: they may belong to a checkpoint or to
    metrics, or update an average of the weights. Waiting for input is not counted here.

    When to ignore
    --------------
    When a checkpoint or an evaluation fell into the few steps that were profiled and is rare
    in the real run: divide the saving by how often it happens.

    How to verify
    -------------
    Comment the callbacks out for one profile: the gap closes. Afterwards the time between
    steps falls, and the step time by as much.

    References:
    ----------
    TensorFlow guide, "Optimize TensorFlow GPU performance with the TensorFlow Profiler",
    section on gaps between steps.
    """

    id = "step-gap"
    title = "Close the gap between steps"
    category = "launch"
    reads_sums = True
    needs = (Need.WORK, Need.HOST_EVENTS, Need.STEPS, Need.STEP_ENDS)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "A loop's own bookkeeping takes up to two percent of a healthy short step."
    )
    minimum_gap_ns = Limit(
        20_000, "ns", "A gap of twenty microseconds is the cost of any first launch."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the gaps are worth closing."""
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
        low_ns = max(total_ns(activity.covered), min(gap_ns, window_ns - gap_ns) - bookkeeping_ns)
        on_cpu = signals.device.is_host_only
        subject = "No operator runs" if on_cpu else "The device idles"
        what = f", mostly in {activity.names[0]}" if activity.names else ""
        yield Finding(
            summary=(
                f"{subject} between steps for {per_step(gap_ns, signals)}{what}"
                f"{_computing(evaluating_ns, signals)}."
            ),
            saving=Saving(
                low_ns,
                gap_ns + evaluating_ns,
                total_ns(claimed),
                claimed,
                "measured",
                (Remove(claims),),
            ),
            evidence=_evidence(signals, claims, activity),
            remedies=_REMEDIES,
        )


def _computing(evaluating_ns: int, signals: Signals) -> str:
    if evaluating_ns == 0:
        return ""
    return f"; operators of something else take another {per_step(evaluating_ns, signals)}"


def _evidence(signals: Signals, claims: Intervals, activity: HostActivity) -> tuple[Evidence, ...]:
    unnamed_ns = total_ns(claims) - total_ns(activity.covered)
    trace = signals.trace
    start, end = claims[(claims[:, 1] - claims[:, 0]).argmax()].tolist()
    track = signals.step_track
    label = trace.text(int(trace.tracks.label[track])) if track >= 0 else ""
    rows: list[tuple[Cell, ...]] = [
        (name, count, inside)
        for name, count, inside in zip(
            activity.names, activity.count, activity.inside_ns, strict=True
        )
    ]
    if unnamed_ns:
        rows.append(("(nothing recorded: Python or native code)", None, unnamed_ns))
    duration = trace.events.duration_ns[activity.rows]
    return (
        Span("The longest gap", signals.worker, start, end, label, "no step code runs"),
        Table(
            "What the host did in the gaps",
            (
                Column("name", "Activity"),
                Column("count", "Times", "count"),
                Column("inside_ns", "In the gaps", "ns"),
            ),
            tuple(rows),
        ),
        costliest("The longest activities in the gaps", signals.worker, activity.rows, duration),
    )
