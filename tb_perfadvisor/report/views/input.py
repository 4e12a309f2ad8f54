"""The input view: a tree of iterators, and what the step waits for."""

from __future__ import annotations

import msgspec

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.signals.input.loader_workers import mean_of_known, worker_batches
from tb_perfadvisor.signals.input.tfdata import (
    PREFIX,
    Pipelines,
    kind_of,
    parents_of_paths,
    stall_parts,
    tfdata,
)
from tb_perfadvisor.signals.recording.availability import shows_input
from tb_perfadvisor.trace import OperatorTotal
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.trace.tables import Int64

_INDEX = regex(r"\[[^\[\]]*\]")


class InputIterator(msgspec.Struct, frozen=True, kw_only=True):
    """A tf.data iterator, summed over epochs and files. Times are means per step.

    If the profile contains only totals, counts and times cover the whole recording.
    """

    path: str
    """The chain from the pipeline's end: `Root::Prefetch::MapAndBatch`."""
    kind: str
    parent: int | None
    """Its index in the list; parents come first."""
    calls: int
    """Over all used steps."""
    total_ns: int
    self_ns: int
    """Without iterators called on the same thread, but including waits for other threads."""
    stall_ns: int | None = None
    """How long the step waits for this iterator itself."""
    function_calls: int | None = None
    function_ns: int | None = None
    """Time in its user function, summed over threads."""
    dataset: str | None = None
    shapes: str | None = None
    types: str | None = None
    parallelism: int | None = None
    is_autotuned: bool | None = None
    batch_size: int | None = None
    buffer_size: int | None = None
    """Elements."""
    buffered: int | None = None
    buffered_bytes: int | None = None


class LoaderWorkers(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker processes of a DataLoader do, if the program times them.

    Means per batch, over the batches that the used steps took.
    """

    workers: int
    cores: int
    """How many processors a worker may use."""
    batches: int
    wall_ns: int
    waiting_ns: int
    """Wall time without processor time: for files, locks and processors."""
    system_ns: int | None
    """Processor time in the operating system, which opens and reads files."""
    computing_ns: int
    """Processor time of the program; with the operating system's where that is unknown."""
    collate_ns: int | None
    """Part of the wall time."""
    samples: float | None
    files: float
    read_bytes: int | None


class InputView(msgspec.Struct, frozen=True, kw_only=True):
    """The input pipeline, and what the step waits for in it. Times are means per step."""

    stall_ns: int | None
    iterators: list[InputIterator]
    reading_on_demand_ns: int | None = None
    reading_ahead_ns: int | None = None
    preprocessing_ns: int | None = None
    elsewhere_ns: int | None = None
    """Waits while no iterator was running. The four parts sum to the stall, except for rounding."""
    cores: int | None = None
    """How many cores the pipeline may use."""
    threads: int | None = None
    memory_bytes: int | None = None
    bottleneck: int | None = None
    """Index of the iterator that the step waits for longest."""
    workers: LoaderWorkers | None = None


def make_input_view(signals: Signals) -> InputView:
    """The pipelines of the used steps, or of the whole recording if there are only totals."""
    count, totals, pipelines = signals.steps.count, signals.trace.totals, tfdata(signals)
    stall_ns = signals.attribution.total_ns(Cause.INPUT) // count if shows_input(signals) else None
    if totals is not None or not len(pipelines):
        stages = totals.input_stages if totals is not None else ()
        return InputView(
            stall_ns=stall_ns, iterators=_summed(stages), workers=_loader_workers(signals)
        )
    parts = stall_parts(signals)
    bottleneck = pipelines.bottleneck
    return InputView(
        stall_ns=stall_ns,
        reading_on_demand_ns=total_ns(parts.reading_on_demand) // count,
        reading_ahead_ns=total_ns(parts.reading_ahead) // count,
        preprocessing_ns=total_ns(parts.preprocessing) // count,
        elsewhere_ns=total_ns(parts.unattributed) // count,
        cores=pipelines.cores,
        threads=pipelines.threads,
        memory_bytes=pipelines.memory_bytes,
        bottleneck=bottleneck if bottleneck >= 0 else None,
        iterators=[_iterator(pipelines, node, count) for node in range(len(pipelines))],
    )


def _loader_workers(signals: Signals) -> LoaderWorkers | None:
    batches = worker_batches(signals)
    if batches is None:
        return None

    def mean(column: Int64) -> int | None:
        known = mean_of_known(column)
        return None if known is None else round(known)

    wall_ns, cpu_ns = round(batches.wall_ns.mean()), round(batches.cpu_ns.mean())
    system_ns = mean(batches.system_ns)
    return LoaderWorkers(
        workers=batches.workers,
        cores=batches.cores,
        batches=len(batches),
        wall_ns=wall_ns,
        waiting_ns=max(wall_ns - cpu_ns, 0),
        system_ns=system_ns,
        computing_ns=max(cpu_ns - (system_ns or 0), 0),
        collate_ns=mean(batches.collate_ns),
        samples=batches.mean_samples,
        files=float(batches.files.mean()),
        read_bytes=mean(batches.read_bytes),
    )


def _iterator(pipelines: Pipelines, node: int, steps: int) -> InputIterator:
    def known(column: str) -> int | None:
        value = int(getattr(pipelines, column)[node])
        return value if value >= 0 else None

    has_function = bool(pipelines.function_count[node])
    autotuned = known("is_autotuned")
    return InputIterator(
        path=pipelines.path[node],
        kind=pipelines.kind[node],
        parent=known("parent"),
        calls=int(pipelines.count[node]),
        total_ns=int(pipelines.total_ns[node]) // steps,
        self_ns=int(pipelines.self_ns[node]) // steps,
        stall_ns=pipelines.stall_ns(node) // steps,
        function_calls=int(pipelines.function_count[node]) if has_function else None,
        function_ns=int(pipelines.function_ns[node]) // steps if has_function else None,
        dataset=pipelines.dataset[node] or None,
        shapes=pipelines.shapes[node] or None,
        types=pipelines.types[node] or None,
        parallelism=known("parallelism"),
        is_autotuned=None if autotuned is None else bool(autotuned),
        batch_size=known("batch_size"),
        buffer_size=known("buffer_size"),
        buffered=known("buffered"),
        buffered_bytes=known("buffered_bytes"),
    )


def _summed(stages: tuple[OperatorTotal, ...]) -> list[InputIterator]:
    """The iterators among a recorder's stages, summed over files and epochs."""
    sums: dict[str, list[int]] = {}
    for stage in stages:
        if stage.name.startswith(PREFIX):
            total = sums.setdefault(_INDEX.sub("", stage.name[len(PREFIX) :]), [0, 0, 0])
            for place, value in enumerate((stage.count, stage.total_ns, stage.self_ns)):
                total[place] += value
    paths = sorted(sums, key=lambda path: (path.count("::"), path))
    parents = parents_of_paths([(0, path) for path in paths])
    found = []
    for path, parent in zip(paths, parents, strict=True):
        calls, whole_ns, own_ns = sums[path]
        found.append(
            InputIterator(
                path=path,
                kind=kind_of(path),
                parent=parent if parent >= 0 else None,
                calls=calls,
                total_ns=whole_ns,
                self_ns=own_ns,
            )
        )
    return found
