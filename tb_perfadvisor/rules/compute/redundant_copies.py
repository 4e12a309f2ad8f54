"""Copies of whole tensors within the device."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import costly_work
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.tensor_copies import tensor_copies
from tb_perfadvisor.signals.tpu.copied_arguments import copied_arguments, passed_copies
from tb_perfadvisor.signals.work.fusible_work import fusible_work
from tb_perfadvisor.trace.integer_groups import is_in


class RedundantCopies(Rule):
    """The device copies tensors that it already has.

    What it finds
    -------------
    Copies within the device by call site: `clone`, `contiguous`, `reshape` where no view is
    possible, `repeat`; in XLA programs, kernels that only copy. Casts, concatenations and writes
    into an existing buffer do not count, nor do copies that disappear when they are fused with what
    reads them: those belong to unfused-operators.

    Why it matters
    --------------
    A copy reads and writes every byte of a tensor and computes nothing. Many copies are habits: a
    `contiguous()` before an operator that also accepts strided tensors, a `repeat` where `expand`
    would do.

    How it is measured
    ------------------
    The time in which nothing else runs on the device. High is all of it. Expected is half, because
    some copies are necessary, all of XLA's copies of an argument in the layout that it has, which
    donating the argument avoids, and nothing of its copies of what a loop passes from trip to trip.
    Where the profile allows it, replaying the steps refines it. Low is 0, because the profile does
    not show which copies are necessary.

    When to ignore
    --------------
    When the copy pays off: if a tensor is read often, a better order in memory can be worth a copy.

    How to verify
    -------------
    The call site is gone from the table or takes less time, and the operators that read the tensor
    have not become slower by more than that.

    References:
    ----------
    PyTorch documentation, "Tensor Views"; JAX documentation, "Buffer donation".
    """

    id = "redundant-copies"
    title = "Avoid unnecessary tensor copies on the device"
    category = "compute"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.LAUNCH_LINKS)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "Half of a smaller share is no more than the variation between steps."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when copies take a good part of the step."""
        copies = tensor_copies(signals)
        is_apart = ~is_in(copies.rows, fusible_work(signals).rows)
        rows, operators = copies.rows[is_apart], copies.operators[is_apart]
        then_ns = signals.trace.events.duration_ns[rows] // 2
        then_ns[is_in(rows, copied_arguments(signals))] = 0
        passed = is_in(rows, passed_copies(signals))
        then_ns[passed] = signals.trace.events.duration_ns[rows][passed]
        saving = faster_device_work(signals, rows, then_ns, basis="heuristic")
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals):
            return
        table, longest = costly_work("copies", signals, rows, saving.claims, operators)
        what, caller = str(table.rows[0][0]), str(table.rows[0][1])
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into copying tensors within the device"
                f" ({count_per_step(len(rows), 'copy', signals, plural='copies')}),"
                f" mostly {what}{f' in {caller}' if caller else ''}."
            ),
            saving=saving,
            evidence=(table, longest),
            remedies=advise("views", "compile", "donated-arguments", "xla-compiled-step"),
        )
