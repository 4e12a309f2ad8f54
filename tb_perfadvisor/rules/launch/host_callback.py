"""Python that the compiled step calls in its midst."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Evidence, Finding, Remedy, Saving, Table, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.host_callbacks import HostCallbacks, host_callbacks
from tb_perfadvisor.trace.intervals import total_ns

_REMEDIES = (
    Remedy(
        text="Compute it with jax.numpy, so that it is compiled with the rest of the step.",
        snippet=(
            "def step(state, batch):\n"
            "    # not jax.pure_callback(np_quantile, shape, batch)\n"
            "    scale = jnp.quantile(jnp.abs(batch), 0.99)\n"
            "    return update(state, batch / scale)"
        ),
        framework="jax",
        reference="https://docs.jax.dev/en/latest/external-callbacks.html",
    ),
    Remedy(
        text="Print and log from outside: return the number, and read it every hundredth step.",
        snippet=(
            "state, loss = train_step(state, batch)  # returns before it is computed\n"
            "if number % 100 == 0:\n"
            "    print(number, float(loss))          # not jax.debug.print in the step"
        ),
        framework="jax",
        reference="https://docs.jax.dev/en/latest/external-callbacks.html",
    ),
    Remedy(
        text="Write the function with TensorFlow's operations: they run where the step runs, "
        "without Python's lock.",
        snippet=(
            "@tf.function\n"
            "def step(batch):\n"
            "    # not tf.py_function(np_clip, [batch], tf.float32)\n"
            "    return model(tf.clip_by_value(batch, 0.0, 1.0))"
        ),
        framework="tensorflow",
        reference="https://www.tensorflow.org/api_docs/python/tf/py_function",
    ),
)


class HostCallback(Rule):
    """The compiled step stops to run a Python function on the host.

    What it finds
    -------------
    Calls of Python from within the step: `jax.pure_callback`, `io_callback`, `debug.callback` and
    `debug.print`, `tf.py_function` and `tf.numpy_function`. Those of the input pipeline do not
    count: python-fed-input tells of them.

    Why it matters
    --------------
    For each call the device finishes what it has, sends the operands to the host, and waits until
    Python, which runs one thread at a time, has answered. Nothing is fused across it.

    How it is measured
    ------------------
    The time in which the device waits for such a call and does nothing else: the idle right after
    its part in the call on a GPU, the waits of the core for its sends and receives on a TPU, in
    TensorFlow the idle while the function's operator runs. Where the program runs on the CPU it is
    the time of the calls beside which no other thread computes. High and expected are all of it.
    Low is 0: what the function does may have to be done in any language.

    When to ignore
    --------------
    When the call is there to find a fault, and goes with it.

    How to verify
    -------------
    No callback is left among the step's operations, and the step is shorter by about its time.

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
        0.03, "share", "A number printed in each step of some milliseconds costs a few percent."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the step waits for Python."""
        callbacks = host_callbacks(signals)
        waited_ns = total_ns(callbacks.waits)
        if self.is_minor(waited_ns, signals):
            return
        evidence = _evidence(signals, callbacks)
        subject = "No other operator runs" if signals.device.is_host_only else "The device waits"
        yield Finding(
            summary=(
                f"{subject} for {per_step(waited_ns, signals)} while the step calls Python"
                f" ({count_per_step(callbacks.count, 'call', signals)}), most for"
                f" {evidence[0].rows[0][0]}."
            ),
            saving=Saving(0, waited_ns, waited_ns, callbacks.waits, "measured"),
            evidence=evidence,
            remedies=_REMEDIES,
        )


def _evidence(signals: Signals, callbacks: HostCallbacks) -> tuple[Table, Evidence]:
    trace, rows = signals.trace, callbacks.rows
    duration = trace.events.duration_ns[rows]
    return (
        events_by_name(
            "What the step calls",
            "Operation",
            trace,
            rows,
            ((Column("total_ns", "Time", "ns"), duration),),
        ),
        costliest("The longest calls", signals.worker, rows, duration),
    )
