"""32-bit matrix kernels that do not use TF32."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import costly_work
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.work.matrix_kernels import matrix_kernels, peak_ratio, times_in_format
from tb_perfadvisor.trace import Precision


class Tf32Off(Rule):
    """Matrix kernels compute in full 32 bits although the device supports TF32.

    What it finds
    -------------
    Time of 32-bit matrix multiplications and convolutions whose kernels are known not to use tensor
    cores, on a device with tensor cores for 32-bit inputs (TF32, since Ampere).

    Why it matters
    --------------
    TF32 keeps the range of 32-bit numbers, rounds inputs to 10 bits of fraction, accumulates in 32
    bits, and is several times faster. A single line turns it on, and no tensor changes its type.
    PyTorch disables it for matrix products by default.

    How it is measured
    ------------------
    The time in which nothing else runs on the device. In the best case, each kernel takes the
    achievable time of its shapes in TF32. Expected assumes that it reaches the same share of that
    as of its own now, and low is half of that. Without recorded shapes, the best case is the ratio
    of the peaks, and half of the time is expected. Kernels that may use tensor cores do not count.
    Where the profile allows it, replaying the steps refines the expected saving.

    When to ignore
    --------------
    When results need all 24 bits of fraction: solvers, some losses, comparisons with a reference.
    With mixed precision, there is little left to gain.

    How to verify
    -------------
    Kernel names change from `sgemm` to `tf32` or `s1688`, and the loss curve is unchanged.

    References:
    ----------
    PyTorch documentation, "CUDA semantics", TensorFloat-32; NVIDIA A100 architecture whitepaper.
    """

    id = "tf32-off"
    title = "Allow TF32 for 32-bit matrix products"
    category = "precision"
    needs = (Need.DEVICE_EVENTS, Need.KERNEL_PRECISION, Need.PEAKS)
    refines = "full-precision-compute"
    is_preview = False

    minimum_share = Limit(0.03, "share", "A smaller gain rarely justifies a change in numerics.")
    minimum_ratio = Limit(
        1.5, "ratio", "Devices whose TF32 is hardly faster than their vector units gain nothing."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when 32-bit kernels without tensor cores take a good part of the step."""
        facts = signals.device_facts
        peaks = facts.peaks if facts else None
        # AMD's matrix units multiply full 32-bit numbers, and PyTorch offers no alternative.
        if facts is None or peaks is None or "tf32" not in peaks.tensor or facts.vendor == "amd":
            return
        kernels = matrix_kernels(signals)
        without_tf32 = kernels.select(
            (kernels.precision == Precision.BITS_32) & (kernels.tensor_cores == 0)
        )
        ratio = peak_ratio(signals, without_tf32, "tf32", peaks)
        without_tf32 = without_tf32.select(ratio >= self.minimum_ratio)
        times = times_in_format(signals, without_tf32, "tf32", peaks)
        saving = faster_device_work(
            signals,
            without_tf32.rows,
            times.expected_ns,
            basis="modeled",
            least_then_ns=times.best_ns,
            most_then_ns=times.worst_ns,
        )
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals):
            return
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into matrix kernels in full 32 bits;"
                f" {facts.name} reaches {(peaks.flop_per_s('tf32') or 0) / 1e12:.0f} TFLOP/s with"
                f" TF32 and {(peaks.flop_per_s('fp32', tensor=False) or 0) / 1e12:.0f} without."
            ),
            saving=saving,
            evidence=costly_work(
                "32-bit matrix kernels", signals, without_tf32.rows, saving.claims
            ),
            remedies=advise("tf32"),
        )
