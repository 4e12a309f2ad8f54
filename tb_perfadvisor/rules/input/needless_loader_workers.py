"""Worker processes that hand over what the training thread could take from memory itself."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.made import made_tables
from tb_perfadvisor.rules.finding import Finding, Saving, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.input.needless_workers import needless_workers
from tb_perfadvisor.signals.input.waiting_fetches import waiting_fetches
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.units import format_bytes, format_duration


class NeedlessLoaderWorkers(Rule):
    """A loader's worker processes take longer to hand over a batch than it takes to make one.

    What it finds
    -------------
    Waits for worker processes of a DataLoader in a program on the CPU whose dataset holds its
    samples in memory, longer than the training thread would take for the same batches.

    Why it matters
    --------------
    A worker pickles each batch, writes it to shared memory and wakes the training thread, on cores
    that the step computes on. Workers that do not persist also start anew for each epoch.

    How it is measured
    ------------------
    The wait for input, minus what a batch takes without workers: 0.06 ms, seven microseconds for
    each sample of a TensorDataset, 40 for each of another dataset, and copying its bytes. For the
    low end, 12 and 150 microseconds count. If the recording has the processor time of the workers'
    batches, that counts. The dataset's size is known of recordings by `perfadvisor run`. Starting
    workers anew lies mostly outside of the recorded steps, and is not counted.

    When to ignore
    --------------
    When samples are prepared by slow code.

    How to verify
    -------------
    Record again: the fetch is `_SingleProcessDataLoaderIter`, and the wait for input falls.

    References:
    ----------
    PyTorch documentation, "torch.utils.data: Single- and Multi-process Data Loading".
    """

    id = "needless-loader-workers"
    title = "Load batches without worker processes"
    category = "input"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT)
    is_preview = False

    minimum_share = Limit(0.05, "share", "The same limit as that of input-stall.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the step waits longer for workers than it would load."""
        found = needless_workers(signals)
        if found is None or self.is_minor(found.expected_ns, signals):
            return
        claims = signals.attribution.intervals[Cause.INPUT]
        rows, idle, _, _ = waiting_fetches(signals)
        workers, size = found.loader.number("num_workers"), found.loader.number("dataset_bytes")
        yield Finding(
            instance=f"{workers} hand over what is in memory",
            summary=(
                f"The step's operators wait {per_step(total_ns(claims), signals)} for batches of"
                f" {workers} worker processes. The dataset is in memory ({format_bytes(size)}), so"
                f" the training thread would take about {format_duration(found.fetch_ns)} for a"
                " batch."
            ),
            saving=Saving(found.low_ns, found.expected_ns, found.high_ns, claims, "modeled"),
            evidence=(
                costliest("The longest waits", signals.worker, rows, idle),
                *made_tables((found.loader,)),
            ),
            remedies=advise("no-loader-workers"),
        )
