"""The compiled step calls Python on the host."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import executions_by_operation
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.host_callbacks import host_callbacks
from tb_perfadvisor.trace.intervals import total_ns


class HostCallback(Rule):
    """The compiled step stops to run a Python function on the host.

    What it finds
    -------------
    Calls of Python from within the step: `jax.pure_callback`, `io_callback`, `debug.callback` and
    `debug.print`, `tf.py_function` and `tf.numpy_function`. Those of the input pipeline are
    reported by python-fed-input.

    Why it matters
    --------------
    For each call the device finishes its work, sends the operands to the host, and waits for the
    answer of Python, which runs one thread at a time. Nothing is fused across the call.

    How it is measured
    ------------------
    The time in which the device waits for such a call and does nothing else: on a GPU, the idle
    time directly after its part of the call; on a TPU, the core's waits for its sends and
    receives; in TensorFlow, the idle time while the function's operator runs. On the CPU it is the
    time of the calls during which no other thread computes. High and expected are all of it. Low
    is 0: the function's work may be needed in any case.

    When to ignore
    --------------
    When the call only serves to find a fault.

    How to verify
    -------------
    The step has no callback among its operations and is shorter by about its time.

    References:
    ----------
    JAX documentation, "External callbacks"; TensorFlow API documentation, "tf.py_function".
    """

    id = "host-callback"
    title = "Keep Python out of the compiled step"
    category = "launch"
    needs = (Need.WORK, Need.DISPATCH)
    is_preview = False

    minimum_share = Limit(
        0.03, "share", "Printing one number costs a few percent of a step of several milliseconds."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the step waits for Python."""
        callbacks = host_callbacks(signals)
        waited_ns = total_ns(callbacks.waits)
        if self.is_minor(waited_ns, signals):
            return
        evidence = executions_by_operation(
            signals, callbacks.rows, "Calls of Python in the step", "Longest calls"
        )
        subject = "No other operator runs" if signals.device.is_host_only else "The device waits"
        yield Finding(
            instance=f"{evidence[0].rows[0][0]}",
            summary=(
                f"{subject} for {per_step(waited_ns, signals)} while the step calls Python"
                f" ({count_per_step(callbacks.count, 'call', signals)}), mostly"
                f" {evidence[0].rows[0][0]}."
            ),
            saving=Saving(0, waited_ns, waited_ns, callbacks.waits, "measured"),
            evidence=evidence,
            remedies=advise("no-callback", "print-outside"),
        )
