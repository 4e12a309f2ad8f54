"""32-bit compute on a device that is faster in 16 bits."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.base import (
    Finding,
    Limit,
    Remedy,
    Rule,
    Saving,
    per_step,
    share_of_window,
)
from tb_perfadvisor.rules.evidence import Column, Table, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.trace import EventKind, KernelFamily, Precision
from tb_perfadvisor.trace.intervals import Intervals, intersect, minus, total_ns, union
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.whatif import Shorten

_MATRIX = (KernelFamily.MATMUL, KernelFamily.CONVOLUTION, KernelFamily.ATTENTION)
# Mixed precision leaves these in 32 bits, for the numbers' sake.
_STAYS_WIDE = (KernelFamily.OPTIMIZER, KernelFamily.SOFTMAX, KernelFamily.RANDOM, KernelFamily.SORT)

_BFLOAT16 = (
    Remedy(
        text="Run forward and loss in bfloat16 under autocast.",
        snippet=(
            'with torch.autocast("cuda", dtype=torch.bfloat16):\n'
            "    loss = loss_fn(model(inputs), targets)\n"
            "loss.backward()"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/amp.html",
    ),
    Remedy(
        text="Set a mixed-precision policy: computation in 16 bits, variables in 32.",
        snippet='tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")',
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/mixed_precision",
    ),
    Remedy(
        text="Cast parameters and inputs of the forward pass to bfloat16; keep the master copy "
        "and the loss in float32.",
        snippet=(
            "def loss_fn(params, batch):\n"
            "    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)\n"
            "    return model.apply(half, batch.astype(jnp.bfloat16)).astype(jnp.float32).mean()"
        ),
        framework="jax",
        reference="https://docs.jax.dev/en/latest/jep/9407-type-promotion.html",
    ),
)
# Before Ampere there is no bfloat16: float16's range is small, so the loss has to be scaled.
_FLOAT16 = (
    Remedy(
        text="Run forward and loss in float16 under autocast, with a scaled loss: this device "
        "has no bfloat16.",
        snippet=(
            'scaler = torch.amp.GradScaler("cuda")\n'
            'with torch.autocast("cuda", dtype=torch.float16):\n'
            "    loss = loss_fn(model(inputs), targets)\n"
            "scaler.scale(loss).backward()\n"
            "scaler.step(optimizer)\n"
            "scaler.update()"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/amp.html",
    ),
    Remedy(
        text="Set a mixed-precision policy: computation in float16, variables in 32 bits. Keras "
        "scales the loss.",
        snippet='tf.keras.mixed_precision.set_global_policy("mixed_float16")',
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/mixed_precision",
    ),
    Remedy(
        text="Cast the forward pass to float16, and scale the loss by a constant that you divide "
        "out of the gradients.",
        snippet="half = jax.tree.map(lambda x: x.astype(jnp.float16), params)",
        framework="jax",
        reference="https://docs.jax.dev/en/latest/jep/9407-type-promotion.html",
    ),
)
_TF32 = Remedy(
    text="Where 32 bits must stay, allow TF32 for matrix multiplication.",
    snippet='torch.set_float32_matmul_precision("high")',
    framework="pytorch",
    reference="https://pytorch.org/docs/stable/notes/cuda.html",
)


class FullPrecisionCompute(Rule):
    """The device computes in 32 bits although it is several times faster in 16.

    What it finds
    -------------
    Time of matrix multiplications, convolutions and attention in 32-bit numbers on a device
    whose dense 16-bit peak is well above its 32-bit peak; with it the elementwise and
    normalisation kernels, whose traffic would halve.

    Why it matters
    --------------
    Tensor cores and matrix units work in 16 bits at several times the rate of 32 bits, and
    every 16-bit tensor takes half the memory and half the bandwidth.

    How it is measured
    ------------------
    From the exclusive time of 32-bit compute. For matrix kernels, high is the roofline's
    bound, the ratio of the device's peaks times the achievable factor; expected is half the
    time, what halving the traffic gives a kernel bound by memory and what tensor cores exceed
    for one that is not; low is half of that. Other kernels save at most half their time,
    expected a quarter, for sure nothing; optimizer, softmax and random numbers stay in 32
    bits. Kernels already on TF32 count with TF32's peak. Where the profile allows it the steps
    are re-timed with what is expected of each kernel: a host that is no faster than the device
    gains nothing by a faster device.

    When to ignore
    --------------
    When the numbers need 32 bits: some solvers, some losses, some layers. Not raised on CPUs,
    where 16-bit arithmetic is often slower.

    How to verify
    -------------
    The 16-bit share of compute time rises to 0.8 or more, kernel names change to 16-bit ones,
    and the loss curve stays where it was.

    References:
    ----------
    NVIDIA, "Mixed Precision Training" (Micikevicius et al., 2018); PyTorch documentation,
    "Automatic Mixed Precision"; TensorFlow guide, "Mixed precision".
    """

    id = "full-precision-compute"
    title = "Compute in 16 bits"
    category = "precision"
    needs = (Need.DEVICE_EVENTS, Need.KERNEL_PRECISION, Need.PEAKS)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "With less of the step in 32-bit matrix kernels, mixed precision is in use."
    )
    minimum_ratio = Limit(
        1.5, "ratio", "Below one and a half times the rate, casts eat most of the gain."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when 32-bit matrix kernels take a good part of the step."""
        trace, facts = signals.trace, signals.device_facts
        peaks = facts.peaks if facts else None
        fast = _peak(signals, "bf16", "fp16")
        if peaks is None or fast is None:
            return
        wide = signals.attribution.intervals[Cause.COMPUTE_32]
        rows = signals.device.rows[
            (signals.precision == Precision.BITS_32)
            & (trace.events.kind[signals.device.rows] == EventKind.KERNEL)
        ]
        kernels = trace.kernels
        family = trace.by_event(kernels.row, kernels.family, KernelFamily.OTHER)
        on_tensor_cores = trace.by_event(kernels.row, kernels.tensor_cores, -1)
        is_matrix = np.isin(family[rows], _MATRIX)
        uses_tf32 = on_tensor_cores[rows] == 1
        high_ns, matrix = 0, intersect(wide, _time_of(signals, rows[is_matrix]))
        for own, peak in (
            (rows[is_matrix & ~uses_tf32], _peak(signals, "fp32")),
            (rows[is_matrix & uses_tf32], _peak(signals, "tf32")),
        ):
            ratio = fast * peaks.achievable / peak if peak else None
            if ratio is None or ratio < self.limit("minimum_ratio"):
                continue
            high_ns += round(total_ns(intersect(wide, _time_of(signals, own))) * (1 - 1 / ratio))
        matrix_ns = total_ns(matrix)
        if high_ns == 0 or share_of_window(matrix_ns, signals) < self.limit("minimum_share"):
            return
        other = minus(
            intersect(wide, _time_of(signals, rows[~np.isin(family[rows], _STAYS_WIDE)])), matrix
        )
        expected_ns = min(matrix_ns // 2, high_ns)
        narrowed = rows[is_matrix]
        lighter = rows[~is_matrix & ~np.isin(family[rows], _STAYS_WIDE)]
        duration_ns = trace.events.duration_ns
        yield Finding(
            summary=(
                f"{per_step(total_ns(wide), signals)} is 32-bit compute; {_name(signals)}"
                f" reaches {fast / 1e12:.0f} TFLOP/s in 16 bits."
            ),
            saving=Saving(
                expected_ns // 2,
                expected_ns + total_ns(other) // 4,
                max(high_ns, expected_ns) + total_ns(other) // 2,
                wide,
                "modelled",
                (
                    Shorten(
                        narrowed,
                        duration_ns[narrowed] * (matrix_ns - expected_ns) // matrix_ns,
                    ),
                    Shorten(lighter, duration_ns[lighter] * 3 // 4),
                ),
            ),
            evidence=(
                _by_family(signals, rows, family),
                costliest(
                    "The longest 32-bit matrix kernels",
                    signals.worker,
                    rows[is_matrix],
                    trace.events.duration_ns[rows[is_matrix]],
                ),
            ),
            remedies=_remedies(signals),
        )


def _remedies(signals: Signals) -> tuple[Remedy, ...]:
    """What the device at hand can do."""
    casts = _BFLOAT16 if _peak(signals, "bf16") is not None else _FLOAT16
    narrow, wide = _peak(signals, "tf32"), _peak(signals, "fp32")
    has_tf32 = narrow is not None and wide is not None and narrow > wide
    return (*casts, _TF32) if has_tf32 else casts


def _name(signals: Signals) -> str:
    facts = signals.device_facts
    return facts.name if facts and facts.name else "the device"


def _peak(signals: Signals, *precisions: str) -> float | None:
    """The first of the device's peaks that is known, in FLOP/s."""
    facts = signals.device_facts
    if facts is None or facts.peaks is None:
        return None
    known = (facts.peaks.flop_per_s(precision) for precision in precisions)
    return next((peak for peak in known if peak is not None), None)


def _time_of(signals: Signals, rows: Int32) -> Intervals:
    events = signals.trace.events
    return union(events.start_ns[rows], events.end_ns[rows])


def _by_family(
    signals: Signals, rows: Int32, family: np.ndarray[tuple[int], np.dtype[np.uint8]]
) -> Table:
    duration = signals.trace.events.duration_ns[rows]
    table = []
    for one in np.unique(family[rows]).tolist():
        own = family[rows] == one
        name = KernelFamily(one).name.lower()
        table.append((name, int(own.sum()), int(duration[own].sum())))
    table.sort(key=lambda row: -row[2])
    return Table(
        "32-bit kernels by what they compute",
        (
            Column("family", "Family"),
            Column("count", "Kernels", "count"),
            Column("total_ns", "Time in the trace", "ns"),
        ),
        tuple(table),
    )
