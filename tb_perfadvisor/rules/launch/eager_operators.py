"""Operators run one by one although they could be compiled together."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.made import step_loops
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.launch.eager_calls import eager_calls
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace.intervals import join, total_ns
from tb_perfadvisor.whatif import Remove


class EagerOperators(Rule):
    """The step runs operator by operator instead of as one compiled program.

    What it finds
    -------------
    Eager TensorFlow operators, and jax.numpy functions called outside a jit, ten or more per step,
    with the device idle until the host has dispatched the next one.

    Why it matters
    --------------
    Each costs tens to hundreds of microseconds of Python and dispatch. None is fused with its
    neighbors, so that each result goes through memory.

    How it is measured
    ------------------
    The idle time, in gaps of up to two milliseconds, that ends with a launch of such an operator,
    minus what synchronizations induce; launch-bound does not count it again. High is that time; low
    and expected do without the estimated cost of recording. Where the profile allows it, expected
    is what the steps save in a replay without these calls.

    On the CPU, where the operators are the work, it is the time in these calls, and in gaps of up
    to five milliseconds between them, in which none of their kernels runs. High adds the time of
    elementwise operations and reductions that run alone, and expected adds half of it: a compiled
    program fuses them with their neighbors or reuses their memory. Where JAX fills an array with a
    number, expected adds all of it: a compiled program stores no such array. PyTorch is eager by
    design; launch-bound reports what that costs.

    When to ignore
    --------------
    When the code runs once, or is being debugged.

    How to verify
    -------------
    The next profile has one call of the step in place of these, and far fewer kernels.

    References:
    ----------
    TensorFlow guide, "Better performance with tf.function"; JAX documentation, "Just-in-time
    compilation".
    """

    id = "eager-operators"
    title = "Compile the step as one program"
    category = "launch"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.DISPATCH)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "A few eager operators around a compiled step cost up to 1 %."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the device waits for eager operators."""
        eager = eager_calls(signals)
        total = total_ns(eager.idle)
        fused_ns, filled_ns = total_ns(eager.fusible), total_ns(eager.constants)
        if self.is_minor(total, signals):
            return
        trace = signals.trace
        duration = trace.events.duration_ns[eager.rows]
        recording_ns = profiler_overhead(signals).within_ns(eager.idle)
        subject = "No operator computes" if signals.device.is_host_only else "The device idles"
        yield Finding(
            summary=(
                f"{subject} for {per_step(total, signals)} while operators are dispatched one by"
                f" one: {count_per_step(len(eager.rows), 'call', signals)} outside any compiled"
                " function."
            ),
            saving=Saving(
                max(total - recording_ns, 0),
                total + filled_ns + (fused_ns - filled_ns) // 2,
                total + fused_ns,
                join(eager.idle, eager.fusible),
                "modeled" if fused_ns else "measured",
                (Remove(join(eager.spans, eager.idle)),),
            ),
            evidence=(
                events_by_name(
                    "Operators outside compiled functions",
                    "Operator",
                    trace,
                    eager.rows,
                    ((Column("host_ns", "Time on the host", "ns"), duration),),
                ),
                costliest("Longest calls", signals.worker, eager.rows, duration),
                *step_loops(signals),
            ),
            remedies=advise("compiled-step", "one-jit"),
        )
