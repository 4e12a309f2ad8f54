"""Preparing input takes the cores that the step computes on."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.loader_workers import worker_batches_table
from tb_perfadvisor.rules.evidence.tfdata_pipelines import changes_of_stage, iterator_table
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.input.core_sharing import CoreSharing, core_sharing
from tb_perfadvisor.signals.input.loader_workers import WorkerBatches, worker_batches
from tb_perfadvisor.signals.input.tfdata import tfdata
from tb_perfadvisor.units import format_duration


class InputSharesCores(Rule):
    """Nothing waits for input, but preparing it takes the cores that the step needs.

    What it finds
    -------------
    Programs on the CPU whose input pipeline computes during the steps: functions of tf.data on
    other threads, or worker processes of a DataLoader that `instrument.torch.time_workers` times.

    Why it matters
    --------------
    Prefetching hides input only on idle cores. Without them, each operator of the step takes
    longer, and no wait shows why. More threads or workers make it worse; only less work helps.

    How it is measured
    ------------------
    With tf.data, threads of the pipeline count while they compute, not while they wait for other
    threads or for files. How much of their time Python functions compute is unknown: calling one
    takes 0.2 milliseconds, and an eighth of the rest is a guess. If more threads run than there are
    cores, they share the cores' time.

    The processor time of input during the step's operators, divided by the number of cores, is
    what operators on all cores lose. But an operator is recorded on one thread, whether or not it
    uses all cores. So three quarters of the expected loss assume that it uses up to 16 of them;
    one quarter counts only threads of input that find no idle core. Low is three quarters of the
    latter, without Python. High takes the threads' time as processor time.

    For DataLoader workers, the processor time is known, and how many threads an operator may use.
    Only workers that find no idle core count. Spread over all cores, their time is what the step
    loses at least. But an operator ends with its slowest thread: three quarters of the expected
    loss assume that all time of the workers delays it, up to half of the step's work. Low is three
    quarters of the former loss, and high is the latter.

    When to ignore
    --------------
    When the work of the pipeline is necessary and already as cheap as it can be.

    How to verify
    -------------
    Feed the same batch again and again: the step time that remains is what free input would give.
    After the change, the operators of the step take less time.

    References:
    ----------
    TensorFlow guide, "Better performance with the tf.data API"; PyTorch documentation, "CPU
    threading".
    """

    id = "input-shares-cores"
    title = "Prepare less input on the cores of the step"
    category = "input"
    needs = (Need.WORK, Need.INPUT)
    is_preview = False

    minimum_share = Limit(
        0.07, "share", "Preparing batches takes up to 5 % of a step in a well-tuned pipeline."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when input takes much of the cores' time."""
        sharing = core_sharing(signals)
        if sharing is None or self.is_minor(sharing.expected_ns, signals):
            return
        saving = Saving(
            sharing.low_ns, sharing.expected_ns, sharing.high_ns, sharing.shared, "modeled"
        )
        workers = worker_batches(signals)
        if workers is not None:
            yield _of_workers(signals, sharing, workers, saving)
        else:
            yield _of_pipeline(signals, sharing, saving)


def _summary(signals: Signals, sharing: CoreSharing, most: str) -> str:
    return (
        f"Preparing input takes {per_step(sharing.expected_ns, signals)} from the step's operators:"
        f" it runs on the same {sharing.cores} cores{most}."
    )


def _of_workers(
    signals: Signals, sharing: CoreSharing, workers: WorkerBatches, saving: Saving
) -> Finding:
    cpu_ns = float(workers.cpu_ns.mean())
    return Finding(
        instance=f"both use {sharing.cores} cores",
        summary=_summary(
            signals,
            sharing,
            f", where {workers.workers} workers compute {format_duration(cpu_ns)} for each batch",
        ),
        saving=saving,
        evidence=(worker_batches_table(workers),),
        remedies=advise("prepare-once", "threads-beside-workers"),
    )


def _of_pipeline(signals: Signals, sharing: CoreSharing, saving: Saving) -> Finding:
    pipelines = tfdata(signals)
    node = int(np.argmax(pipelines.function_ns))
    run_ns = int(pipelines.function_ns[node])
    calls = int(pipelines.function_count[node])
    most = ""
    if run_ns:
        mean = format_duration(run_ns / max(calls, 1))
        most = f", mostly in {pipelines.kind[node]} ({calls:,} calls of {mean} in the profile)"
    return Finding(
        instance=f"both use {sharing.cores} cores",
        summary=_summary(signals, sharing, most),
        saving=saving,
        evidence=(iterator_table(signals),),
        remedies=advise(
            *changes_of_stage(signals, node, is_python=2 * sharing.python_ns > sharing.input_ns),
            "data-service",
        ),
    )
