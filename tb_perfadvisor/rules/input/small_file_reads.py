"""A batch is read from many files."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.loader_workers import worker_batches_table
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.input.file_calls import file_calls
from tb_perfadvisor.signals.input.input_stages import Stage, input_stages
from tb_perfadvisor.signals.input.loader_workers import (
    WorkerBatches,
    has_loader_workers,
    worker_batches,
)
from tb_perfadvisor.signals.input.tfdata import tfdata
from tb_perfadvisor.trace.intervals import intersect, overlap_ns, total_ns, union
from tb_perfadvisor.units import format_bytes, format_duration
from tb_perfadvisor.whatif import Remove

_ADVICE = ("shards", "bucket-cache", "local-copy")


_USED_UP = 1.2
"""How much longer than a step making a batch has to take: batches differ by some percent."""


class SmallFileReads(Rule):
    """Each batch opens many files, and the device waits while they are opened and read.

    What it finds
    -------------
    Fetches that open many files for one batch while the device waits.

    Why it matters
    --------------
    Opening a file costs a round trip to the file system: tens of microseconds on a local disk,
    tens of milliseconds in a bucket or on a network mount. For small files that is more than
    reading them takes. A large file that is read sequentially pays it once.

    How it is measured
    ------------------
    From the calls that open, look up or close files in the Python frames inside the fetches; with
    tf.data, from the operations that read whole files, including opening. Expected and low are the
    idle time during these calls, which shards avoid. High is the idle time during all reading,
    because shards are read at the sequential rate of the disk.

    Worker processes of a DataLoader are not in the profile. If their batches are marked
    (`instrument.torch.time_workers`), the time in which they do not compute counts as waiting for
    files, if each batch opens many, if that is more than half of its time, and unless the marks
    show large files. Expected is the part of the wait for input that disappears if batches take
    only their processor time; low is half of it, and high is the whole wait. Without marks, this
    rule only says how to find out.

    When to ignore
    --------------
    When all files are in the page cache after the first epoch and later epochs do not wait.

    How to verify
    -------------
    Calls that open files drop from one per sample to one per shard.

    References:
    ----------
    WebDataset documentation, "Sharding and sequential input"; TensorFlow guide, "TFRecord and
    tf.train.Example".
    """

    id = "small-file-reads"
    title = "Pack many small files into a few large ones"
    category = "input"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT, Need.FILE_READS)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "The Python tracer alone makes calls this short look twice as long."
    )
    minimum_files = Limit(
        8, "count", "A step that opens fewer files reads large files or only a few samples."
    )

    waiting_share = Limit(
        0.5, "share", "A worker that computes most of the time needs less work, not fewer files."
    )

    small_bytes = Limit(
        8 << 20,
        "bytes",
        "Opening a file in a bucket takes tens of milliseconds. A stream of 200 MB/s reads 8 MiB in"
        " 42 ms, so larger files take longer to read than to open.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the steps wait for files to be opened."""
        if has_loader_workers(signals):
            yield from self._of_workers(signals)
        else:
            yield from self._of_this_process(signals)

    def _of_workers(self, signals: Signals) -> Iterable[Finding]:
        window, workers = signals.attribution, worker_batches(signals)
        claims = window.intervals[Cause.INPUT]
        stall_ns = total_ns(claims)
        if self.is_minor(stall_ns, signals):
            return
        if workers is None:
            yield Finding(
                title="Find out what the loader's workers do",
                summary=(
                    f"The step waits {per_step(stall_ns, signals)} for worker processes, whose work"
                    " the profile does not show: they may read many small files."
                ),
                remedies=advise("timed-workers", "shards", "bucket-cache", "local-copy"),
                severity="low",
            )
            return
        wall_ns, cpu_ns = float(workers.wall_ns.mean()), float(workers.cpu_ns.mean())
        files = float(workers.files.mean())
        if files < self.minimum_files or wall_ns - cpu_ns < self.waiting_share * wall_ns:
            return
        if (workers.mean_file_bytes or 0) > self.small_bytes:
            return
        # A batch arrives whenever a worker is ready, or the step is.
        steps = max(len(signals.steps), 1)
        step_ns = (window.window_ns - stall_ns) / steps
        waits_ns = max(cpu_ns / workers.workers - step_ns, 0.0) * steps
        saved_ns = max(stall_ns - int(waits_ns), 0)
        yield Finding(
            instance=f"{files:,.0f} files for each batch",
            summary=(
                f"The step waits {per_step(stall_ns, signals)} for {workers.workers} workers. They"
                f" open {files:,.0f} files for each batch{_details(workers, files)}, and compute"
                f" only {format_duration(cpu_ns)} of the {format_duration(wall_ns)} that it takes."
                f"{_used_up(wall_ns / workers.workers, window.window_ns / steps)}"
            ),
            saving=Saving(saved_ns // 2, saved_ns, stall_ns, claims, "modeled"),
            evidence=(worker_batches_table(workers),),
            remedies=advise(*_ADVICE),
        )

    def _of_this_process(self, signals: Signals) -> Iterable[Finding]:
        trace, window = signals.trace, signals.attribution
        events, stall = trace.events, window.intervals[Cause.INPUT]
        rows, opened = file_calls(signals)
        if opened < self.minimum_files * signals.steps.count:
            return
        calls = union(events.start_ns[rows], events.end_ns[rows])
        claims = intersect(stall, input_stages(signals).intervals[Stage.READING])
        opening_ns = total_ns(intersect(claims, calls))
        if self.is_minor(opening_ns, signals):
            return
        # Operations that read whole files do not separate opening from reading.
        is_whole = len(tfdata(signals)) > 0
        alone = f" Opening and closing them alone takes {per_step(opening_ns, signals)}."
        idle = overlap_ns(claims, events.start_ns[rows], events.end_ns[rows])
        yield Finding(
            instance=count_per_step(opened, "file", signals),
            summary=(
                f"{per_step(total_ns(claims), signals)} is spent waiting while the input pipeline"
                f" opens and reads {count_per_step(opened, 'file', signals)}."
                f"{'' if is_whole else alone}"
            ),
            saving=Saving(
                0 if is_whole else opening_ns,
                opening_ns,
                total_ns(claims),
                claims,
                "measured",
                (Remove(calls),),
            ),
            evidence=(
                events_by_name(
                    "Calls to the file system",
                    "Call",
                    trace,
                    rows,
                    ((Column("idle_ns", "Device idle", "ns"), idle),),
                ),
                costliest("Longest of these calls", signals.worker, rows, idle),
            ),
            remedies=advise(*_ADVICE),
        )


def _details(workers: WorkerBatches, files: float) -> str:
    """How many files a sample takes, and how large they are, as far as it is known."""
    parts = []
    if workers.mean_samples:
        parts.append(f"{files / workers.mean_samples:.2g} per sample")
    if workers.mean_file_bytes:
        parts.append(f"{format_bytes(workers.mean_file_bytes)} each")
    return f" ({', '.join(parts)})" if parts else ""


def _used_up(batch_ns: float, step_ns: float) -> str:
    """A sentence if the recorded steps took batches faster than the workers make them."""
    if batch_ns < _USED_UP * step_ns:
        return ""
    return (
        f" They make a batch every {format_duration(batch_ns)}, so these steps of"
        f" {format_duration(step_ns)} use up batches that were ready: later steps wait longer."
    )
