"""How batches are read and made."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name, made_tables
from tb_perfadvisor.rules.evidence.tfdata_pipelines import (
    MINIMUM_SHARE,
    changes_of_stage,
    iterator_table,
    stalls_of,
)
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table, costliest
from tb_perfadvisor.rules.savings import (
    bet_on_rate_ns,
    loading_saving,
    saving_of_doubled_input_rate_ns,
)
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.input.core_sharing import CoreSharing, core_sharing
from tb_perfadvisor.signals.input.host_loading import HostLoading, host_loading, loader_in_process
from tb_perfadvisor.signals.input.input_stages import Stage, file_calls, input_stages
from tb_perfadvisor.signals.input.loader_workers import (
    WorkerBatches,
    fetches_without_workers,
    has_loader_workers,
    needless_workers,
    waiting_fetches,
    worker_batches,
    workers_to_keep_up,
)
from tb_perfadvisor.signals.input.tfdata import python_functions, tfdata
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    clip,
    intersect,
    join,
    overlap_ns,
    shared_ns,
    total_ns,
    union,
)
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import format_bytes, format_duration
from tb_perfadvisor.whatif import Remove


def worker_batches_table(workers: WorkerBatches) -> Table:
    """One row for each batch, in the order in which the program received them."""
    columns = (
        (Column("wall_ns", "Time", "ns"), workers.wall_ns),
        (Column("cpu_ns", "Processor time", "ns"), workers.cpu_ns),
        (Column("collate_ns", "In collate_fn", "ns"), workers.collate_ns),
        (Column("samples", "Samples", "count"), workers.samples),
        (Column("files", "Files opened", "count"), workers.files),
        (Column("read_bytes", "Read", "bytes"), workers.read_bytes),
    )
    # Older recordings do not tell all of them.
    known = [(column, values) for column, values in columns if (values >= 0).any()]
    return Table(
        "Batches of the workers",
        tuple(column for column, _ in known),
        tuple(zip(*(_cells(values) for _, values in known), strict=True)),
    )


def _cells(values: Int64) -> list[int | None]:
    return [value if value >= 0 else None for value in values.tolist()]


_IN_MEMORY = "Keep prepared samples in memory"


class LoaderInMainProcess(Rule):
    """The thread that runs the steps also reads and prepares each batch."""

    id = "loader-in-main-process"
    title = "Load batches in worker processes"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT)
    is_preview = False

    minimum_share = Limit(0.05, "share", "The same limit as that of input-stall.")
    minimum_fetch_ns = Limit(
        2_000_000,
        "ns",
        "In PyTorch's ResNet-50 sample, taking over a batch from a worker costs up to 1.4 ms. "
        "Samples in memory are handed over by nobody.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        events, rows = signals.trace.events, fetches_without_workers(signals)
        usual_ns = float(np.median(events.duration_ns[rows])) if len(rows) else 0.0
        prices = host_loading(signals)
        least_ns = 0 if prices is not None and prices.keeps_in_memory else self.minimum_fetch_ns
        if len(rows) == 0 or usual_ns < least_ns:
            return
        fetches = events.spans(rows)
        claims = intersect(signals.attribution.intervals[Cause.INPUT], fetches)
        stall_ns = total_ns(claims)
        if self.is_minor(stall_ns if prices is None else prices.best.expected_ns, signals):
            return
        idle = overlap_ns(claims, events.start_ns[rows], events.end_ns[rows])
        loader = loader_in_process(signals)
        subject = "The step's operators wait" if signals.device.is_host_only else "The device waits"
        remedies = advise("loader-workers", "data-in-memory", workers=workers_to_keep_up(signals))
        if prices is not None and prices.keeps_in_memory:
            remedies = advise("prepared-samples", "data-in-memory")
            if prices.workers.expected_ns > 0 and not prices.is_sized:
                remedies += advise("loader-workers", workers=workers_to_keep_up(signals))
        yield Finding(
            title="" if prices is None or not prices.keeps_in_memory else _IN_MEMORY,
            instance=f"each takes {format_duration(usual_ns)} now",
            summary=(
                f"{subject} {per_step(stall_ns, signals)} because the training thread loads"
                f" the batches itself.{'' if prices is None else _why(prices)}"
            ),
            saving=loading_saving(signals, claims, fetches),
            evidence=(
                costliest("Longest fetches", signals.worker, rows[idle > 0], idle[idle > 0]),
                *made_tables(() if loader is None else (loader,)),
            ),
            remedies=remedies,
        )


def _why(prices: HostLoading) -> str:
    """Why samples in memory are better than workers, in a program on the CPU."""
    if not prices.keeps_in_memory:
        return ""
    cores = "" if prices.cores is None else f" of {prices.cores:g}"
    does = "brings" if prices.workers.expected_ns > 0 else "would cost more than it brings"
    least = " less than memory does" if prices.workers.expected_ns > 0 else ""
    augmented = (
        " What changes samples at random has to stay: apply it to whole batches."
        if prices.is_augmented
        else ""
    )
    return (
        f" Loading them in worker processes {does}{least}: it takes about"
        f" {format_duration(prices.hand_over_ns)} to hand over a batch, and cores{cores} that the"
        f" step computes on.{augmented}"
    )


class NeedlessLoaderWorkers(Rule):
    """A loader's worker processes take longer to hand over a batch than it takes to make one."""

    id = "needless-loader-workers"
    title = "Load batches without worker processes"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT)
    is_preview = False

    minimum_share = Limit(0.05, "share", "The same limit as that of input-stall.")

    def check(self, signals: Signals) -> Iterable[Finding]:
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


class InputSharesCores(Rule):
    """Nothing waits for input, but preparing it takes the cores that the step needs."""

    id = "input-shares-cores"
    title = "Prepare less input on the cores of the step"
    needs = (Need.WORK, Need.INPUT)
    is_preview = False

    minimum_share = Limit(
        0.07, "share", "Preparing batches takes up to 5 % of a step in a well-tuned pipeline."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
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


_ADVICE = ("shards", "bucket-cache", "local-copy")


_USED_UP = 1.2
"""How much longer than a step making a batch has to take: batches differ by some percent."""


class SmallFileReads(Rule):
    """Each batch opens many files, and the device waits while they are opened and read."""

    id = "small-file-reads"
    title = "Pack many small files into a few large ones"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT, Need.FILE_READS)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "The Python tracer alone makes calls this short look twice as long."
    )
    minimum_files = Limit(
        8, "count", "A step that opens fewer files reads large files or only a few samples."
    )

    waiting_share = 0.5
    """A worker that computes most of the time needs less work, not fewer files."""

    small_bytes = 8 << 20
    """Opening a file in a bucket takes tens of milliseconds. A stream of 200 MB/s reads 8 MiB in 42
    ms, so larger files take longer to read than to open."""

    def check(self, signals: Signals) -> Iterable[Finding]:
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
        calls = events.spans(rows)
        claims = intersect(stall, input_stages(signals).intervals[Stage.READING])
        opening_ns = shared_ns(claims, calls)
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


_GENERATOR = "Generator"
_IDLE = 0.1
"""The share of the cores' time that a machine idles while it is busy: between two schedulings."""


class PythonFedInput(Rule):
    """The step waits for input that Python code produces: a generator, or a function in a map."""

    id = "python-fed-input"
    title = "Make input with TensorFlow's operations, not in Python"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT, Need.ITERATORS)
    is_preview = False

    minimum_share = MINIMUM_SHARE

    def check(self, signals: Signals) -> Iterable[Finding]:
        rows, pipelines = python_functions(signals), tfdata(signals)
        events, is_busy = signals.trace.events, _is_busy(signals)
        start, end = events.start_ns[rows], events.end_ns[rows]
        made = join(union(start, end), _generators(signals) if is_busy and len(rows) else EMPTY)
        waited = intersect(stalls_of(pipelines, range(len(pipelines))), made)
        work = signals.attribution.intervals[Cause.HOST_COMPUTE]
        beside = intersect(work, made) if is_busy else EMPTY
        waited_ns = total_ns(waited)
        # Python's thread takes its part of the cores from those of the step.
        taken_ns = total_ns(beside) // ((pipelines.cores or 1) + 1)
        if self.is_minor(waited_ns + taken_ns, signals):
            return
        claims = join(waited, beside)
        if taken_ns:
            window = signals.attribution
            claims = clip(made, window.window_start_ns, window.window_end_ns)
        window_ns = signals.attribution.window_ns
        low_ns = saving_of_doubled_input_rate_ns(waited_ns, window_ns)
        expected_ns = waited_ns
        if not signals.device.is_host_only:
            expected_ns = bet_on_rate_ns(waited_ns, low_ns)
        low_ns = saving_of_doubled_input_rate_ns(waited_ns + taken_ns, window_ns)
        source = "a generator" if _GENERATOR in pipelines.kind else "Python code in a map"
        calls = count_per_step(int((signals.steps.owner[rows] >= 0).sum()), "call", signals)
        also = f" It also takes {per_step(taken_ns, signals)} of the step's cores."
        yield Finding(
            instance=calls,
            summary=(
                f"{per_step(waited_ns, signals)} is spent waiting for {source} ({calls}), which"
                f" runs one call at a time.{also if taken_ns else ''}"
            ),
            saving=Saving(
                low_ns,
                expected_ns + taken_ns,
                total_ns(claims),
                claims,
                "modeled" if taken_ns else "measured",
            ),
            evidence=(
                costliest(
                    "Python calls that the step waits for longest",
                    signals.worker,
                    rows,
                    overlap_ns(claims, start, end),
                ),
                iterator_table(signals),
            ),
            remedies=advise(
                *(("arrays-as-tensors",) if _GENERATOR in pipelines.kind else ()),
                "tensorflow-input",
                "parallel-python-input",
            ),
        )


def _is_busy(signals: Signals) -> bool:
    """Whether the step computes on cores of which none is idle."""
    load = signals.trace.facts.load
    return signals.device.is_host_only and load is not None and load.idle <= _IDLE


def _generators(signals: Signals) -> Intervals:
    """When generators' stages run, which hand over one sample at a time and go with them."""
    pipelines, events = tfdata(signals), signals.trace.events
    stages = [pipelines.call_rows[n] for n, kind in enumerate(pipelines.kind) if kind == _GENERATOR]
    rows = np.concatenate(stages) if stages else np.empty(0, dtype=np.int32)
    return events.spans(rows)
