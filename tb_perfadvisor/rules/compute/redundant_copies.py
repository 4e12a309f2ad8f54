"""Copies of whole tensors within the device."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import work_by_call_site
from tb_perfadvisor.rules.finding import Finding, Remedy, costliest
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.device.tensor_copies import tensor_copies

_REMEDIES = (
    Remedy(
        text="Take views where a view serves, and copy only what the next operator cannot read "
        "as it lies.",
        snippet=(
            "heads = x.unflatten(-1, (heads, -1)).transpose(1, 2)  # a view: no contiguous()\n"
            "y = F.scaled_dot_product_attention(q, k, v)           # takes strided tensors\n"
            "keys = keys.expand(batch, -1, -1)                     # in place of keys.repeat(...)\n"
            "frozen = parameters.detach()                          # in place of .clone()"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/tensor_view.html",
    ),
    Remedy(
        text="Where the copies come from operators that want another order of the dimensions, "
        "let the compiler write the order that is read.",
        snippet="model = torch.compile(model)",
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/generated/torch.compile.html",
    ),
    Remedy(
        text="Give the step's old buffers back to it, so that XLA need not copy them.",
        snippet="train_step = jax.jit(train_step, donate_argnums=0)",
        framework="jax",
        reference="https://docs.jax.dev/en/latest/buffer_donation.html",
    ),
    Remedy(
        text="Compile the step, which fuses copies into what reads them.",
        snippet="@tf.function(jit_compile=True)\ndef train_step(batch): ...",
        framework="tensorflow",
        reference="https://www.tensorflow.org/xla",
    ),
)


class RedundantCopies(Rule):
    """The device copies tensors that it has already.

    What it finds
    -------------
    Copies within the device by the place that asks for them: `clone`, `contiguous`, `reshape`
    of what allows no view, `repeat`; in XLA programs kernels that do nothing but copy. Casts,
    concatenations and writes into a buffer of the program's own are not among them.

    Why it matters
    --------------
    A copy reads and writes every byte of a tensor and computes nothing. Many are habits: a
    `contiguous()` before an operator that reads strided tensors as well, a `repeat` where
    `expand` would serve.

    How it is measured
    ------------------
    From the time in which nothing else runs on the device. High is all of it. Expected is half,
    after re-timing the steps where the profile allows that, as some of the copies are needed;
    which, the profile cannot tell, so low is nothing.

    When to ignore
    --------------
    When the copy pays: many reads of a tensor in a better order are worth one copy of it.

    How to verify
    -------------
    The place is gone from the table, or takes less; what reads the tensor has not become slower
    by more.

    References:
    ----------
    PyTorch documentation, "Tensor Views"; JAX documentation, "Buffer donation".
    """

    id = "redundant-copies"
    title = "Copy tensors within the device only where needed"
    category = "compute"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.LAUNCH_LINKS)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "Of a fiftieth of the step half would be saved: no more than a step varies."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when copies take a good part of the step."""
        copies = tensor_copies(signals)
        rows = copies.rows
        half = signals.trace.events.duration_ns[rows] // 2
        saving = faster_device_work(signals, rows, half, basis="heuristic")
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals):
            return
        cost_ns = time_within(signals, rows, saving.claims)
        table = work_by_call_site("Copies by place", signals, rows, cost_ns, copies.operators)
        what, caller = str(table.rows[0][0]), str(table.rows[0][1])
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} is copies of tensors within the device "
                f"({count_per_step(len(rows), 'copy', signals, plural='copies')}),"
                f" mostly {what}{f' in {caller}' if caller else ''}."
            ),
            saving=saving,
            evidence=(
                table,
                costliest("The longest copies", signals.worker, rows, cost_ns),
            ),
            remedies=_REMEDIES,
        )
