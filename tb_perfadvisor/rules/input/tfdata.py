"""Pipelines of tf.data that another order or another setting makes faster."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tfdata_pipelines import (
    BATCHES,
    MAPS,
    MINIMUM_SHARE,
    REPEATS,
    SHUFFLES,
    available_cores,
    iterator_evidence,
    iterator_table,
    stalls_of,
)
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.rules.savings import REALIZED_SHARE, saving_of_doubled_input_rate_ns
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.input.core_sharing import overlap_limit
from tb_perfadvisor.signals.input.tfdata import (
    ASYNCHRONOUS,
    READERS,
    Pipelines,
    element_bytes,
    file_reads,
    function_operators,
    python_functions,
    tfdata,
)
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import (
    Intervals,
    clip,
    intersect,
    join,
    overlap_ns,
    shared_ns,
    total_ns,
)
from tb_perfadvisor.units import format_bytes, format_duration
from tb_perfadvisor.whatif import Remove


class SlowPipeline(Rule):
    """Base of the rules about what makes a step wait for its pipeline."""

    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT, Need.ITERATORS)
    is_preview = False
    minimum_share = MINIMUM_SHARE


class TfdataLateGrowth(Rule):
    """A shuffle buffer holds decoded elements, many times the size of the encoded records."""

    id = "tfdata-late-growth"
    title = "Shuffle before elements grow"
    needs = (Need.ITERATORS,)
    is_preview = False

    minimum_bytes = 256e6
    """A training host does not miss a quarter of a gigabyte."""
    minimum_growth = 4.0
    """Bytes grow by a factor of 4 when cast to floats, compressed images by 10 when decoded."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        pipelines = tfdata(signals)
        for node in range(len(pipelines)):
            if pipelines.kind[node] not in SHUFFLES:
                continue
            elements = int(pipelines.buffer_size[node])
            size = element_bytes(pipelines.shapes[node], pipelines.types[node])
            source = _before_maps(pipelines, node)
            if size is None or source is None or elements <= 0:
                continue
            total = elements * size
            if total < self.minimum_bytes:
                continue
            before = element_bytes(pipelines.shapes[source], pipelines.types[source])
            if before is None and "string" not in pipelines.types[source]:
                continue
            if before is not None and size < self.minimum_growth * before:
                continue
            size_before = "encoded records" if before is None else f"{format_bytes(before)} each"
            yield Finding(
                instance=pipelines.kind[node],
                summary=(
                    f"The {pipelines.kind[node]} buffer takes {format_bytes(total)} of host memory:"
                    f" {elements:,} elements of {format_bytes(size)}, which were {size_before}"
                    " before they were mapped."
                ),
                evidence=(iterator_table(signals),),
                remedies=advise("shuffle-encoded"),
                severity="low",
            )


def _before_maps(pipelines: Pipelines, node: int) -> int | None:
    """The iterator that feeds the maps directly below a buffer; None without maps."""
    first = pipelines.children(node)
    if len(first) != 1 or pipelines.kind[first[0]] not in MAPS:
        return None
    (node,) = first
    while len(below := pipelines.children(node)) == 1 and pipelines.kind[below[0]] in MAPS:
        (node,) = below
    return below[0] if len(below) == 1 else None


# They pass elements on unchanged: the transformation below them is the last one.
_TRANSPARENT = REPEATS | {
    *("Root", "Model", "Options", "MaxIntraOpParallelism", "PrivateThreadPool", "Finalize"),
    *("AssertNext", "AssertCardinality", "FiniteTake", "FiniteSkip", "Take", "Skip"),
}
# Without a framework: JAX and PyTorch programs read through tf.data as well.


class TfdataNoPrefetch(SlowPipeline):
    """The tf.data pipeline prepares each batch only when the step asks for it."""

    id = "tfdata-no-prefetch"
    title = "End the tf.data pipeline with a prefetch"

    minimum_share = Limit(
        0.03,
        "share",
        "A buffer costs a few tens of microseconds per step, and input varies by a few percent.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        pipelines = tfdata(signals)
        for root in range(len(pipelines)):
            last = _last(pipelines, root) if pipelines.parent[root] < 0 else -1
            if last < 0 or pipelines.kind[last] in ASYNCHRONOUS:
                continue
            nodes = pipelines.below(root)
            claims = stalls_of(pipelines, nodes)
            most_ns = saved_ns = _hidden_ns(signals, claims)
            if (limit := overlap_limit(signals)) is not None:
                most_ns, saved_ns = min(most_ns, limit.high_ns), min(saved_ns, limit.expected_ns)
            if self.is_minor(saved_ns, signals):
                continue
            yield Finding(
                instance=f"it ends in {pipelines.kind[last]}",
                summary=(
                    f"A prefetch would hide {per_step(saved_ns, signals)} of the wait for input:"
                    f" the pipeline ends in {pipelines.kind[last]}, which prepares each batch only"
                    " when the step asks for it."
                ),
                saving=Saving(
                    int(REALIZED_SHARE * saved_ns) if signals.device.is_host_only else saved_ns,
                    saved_ns,
                    max(most_ns, saved_ns),
                    claims,
                    "measured",
                    (Remove(claims),),
                ),
                evidence=iterator_evidence(signals, nodes, claims),
                remedies=advise("prefetch"),
            )


def _last(pipelines: Pipelines, root: int) -> int:
    """The last transformation of the pipeline; -1 when it was not recorded."""
    node = root
    while pipelines.kind[node] in _TRANSPARENT:
        children = pipelines.children(node)
        if len(children) != 1:
            return -1
        node = children[0]
    return node


def _hidden_ns(signals: Signals, claims: Intervals) -> int:
    """How much of the waiting would be hidden if it overlapped the rest of each step."""
    steps, window = signals.steps, signals.attribution
    if not len(steps):
        waiting_ns = total_ns(claims)
        return min(waiting_ns, window.window_ns - waiting_ns)
    waiting_per_step_ns = overlap_ns(claims, steps.start_ns, steps.end_ns)
    working_ns = steps.duration_ns - waiting_per_step_ns
    return int(waiting_per_step_ns.clip(max=working_ns).sum())


class TfdataPerElementMap(SlowPipeline):
    """A tf.data map calls a tiny function for each element, and the calls are the cost."""

    id = "tfdata-per-element-map"
    title = "Map whole batches instead of single elements"

    minimum_calls = 64
    """Fewer calls per step cost too little to matter."""
    maximum_run_ns = 30_000
    """Starting the function costs less than a longer run."""
    maximum_bytes = 16_384
    """Copying a larger element into its batch takes as long as the call."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        pipelines, calls = tfdata(signals), self.minimum_calls * signals.steps.count
        excluded = _reading_or_python(signals)
        nodes = []
        for node in range(len(pipelines)):
            count = int(pipelines.function_count[node])
            above = [pipelines.kind[parent] for parent in pipelines.above(node)]
            is_batched = pipelines.kind[node] == "MapAndBatch" or not BATCHES.isdisjoint(above)
            if (
                pipelines.kind[node] in MAPS
                and is_batched
                and count >= calls
                and pipelines.function_ns[node] <= count * self.maximum_run_ns
                and _element_bytes(pipelines, node) <= self.maximum_bytes
                and not len(intersect(pipelines.work[node], excluded))
            ):
                nodes.append(node)
        claims = stalls_of(pipelines, nodes)
        count = sum(int(pipelines.function_count[node]) for node in nodes)
        running = join(*(pipelines.work[node] for node in nodes))
        saved_ns = total_ns(claims) - shared_ns(claims, running)
        if self.is_minor(saved_ns, signals):
            return
        mean_ns = sum(int(pipelines.function_ns[node]) for node in nodes) / count
        yield Finding(
            instance=count_per_step(count, "call", signals),
            summary=(
                f"Calling tiny functions makes the step wait {per_step(saved_ns, signals)}:"
                f" {count_per_step(count, 'call', signals)} that each run"
                f" {format_duration(mean_ns)}."
            ),
            saving=Saving(saved_ns // 2, saved_ns, total_ns(claims), claims, "modeled"),
            evidence=iterator_evidence(signals, nodes, claims),
            remedies=advise("vectorized-map"),
        )


def _element_bytes(pipelines: Pipelines, node: int) -> float:
    """The size of a mapped element; infinite where it is unknown."""
    batch = max(int(pipelines.batch_size[node]), 1)
    size = element_bytes(pipelines.shapes[node], pipelines.types[node], batch_size=batch)
    return inf if size is None else size / batch


def _reading_or_python(signals: Signals) -> Intervals:
    """When functions read files or run Python code."""
    events = signals.trace.events
    return join(*(events.spans(rows) for rows in (file_reads(signals), python_functions(signals))))


class TfdataRepeatBeforeShuffle(Rule):
    """The pipeline repeats the records before it shuffles them."""

    id = "tfdata-repeat-before-shuffle"
    title = "Shuffle before repeating"
    needs = (Need.ITERATORS,)
    is_preview = False

    def check(self, signals: Signals) -> Iterable[Finding]:
        pipelines = tfdata(signals)
        for node in range(len(pipelines)):
            if pipelines.kind[node] != "Shuffle":
                continue
            repeats = [
                iterator
                for iterator in pipelines.below(node)
                if pipelines.kind[iterator] in REPEATS
            ]
            if not repeats:
                continue
            path = pipelines.path[repeats[0]]
            yield Finding(
                summary=(
                    "The pipeline shuffles records across epochs, because it repeats them first:"
                    f" {path}."
                ),
                evidence=(iterator_table(signals),),
                remedies=advise("shuffle-before-repeat"),
                severity="low",
            )


class TfdataSequentialInterleave(SlowPipeline):
    """One thread reads the files of a tf.data pipeline, and the step waits for it."""

    id = "tfdata-sequential-interleave"
    title = "Read several files at a time"

    files_at_a_time = 4
    """Even slow storage serves four parallel reads; most serves more."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        pipelines = tfdata(signals)
        for node in range(len(pipelines)):
            if not _reads_one_by_one(pipelines, node):
                continue
            nodes = [
                below
                for below in pipelines.below(node)
                # An iterator that works ahead does not wait for this thread.
                if pipelines.kind[below] not in ASYNCHRONOUS
            ]
            claims = stalls_of(pipelines, nodes)
            stall_ns = total_ns(claims)
            if self.is_minor(stall_ns, signals):
                continue
            yield Finding(
                instance=pipelines.kind[node],
                summary=(
                    f"{per_step(stall_ns, signals)} is spent waiting for {pipelines.kind[node]} and"
                    " the iterators below it, which read one file at a time."
                ),
                saving=Saving(0, self._saved_ns(pipelines, nodes), stall_ns, claims, "modeled"),
                evidence=iterator_evidence(signals, nodes, claims),
                remedies=advise("parallel-reads", "parallel-tfrecords"),
            )

    def _saved_ns(self, pipelines: Pipelines, nodes: list[int]) -> int:
        """Reading spreads over the files, decoding also over the cores."""
        files = self.files_at_a_time
        cores = min(files, available_cores(pipelines))
        return int(
            sum(
                pipelines.stall_ns(node)
                * (1 - 1 / (files if pipelines.kind[node] in READERS else cores))
                for node in nodes
            )
        )


def _reads_one_by_one(pipelines: Pipelines, node: int) -> bool:
    """Whether it reads files one by one and nothing above it reads several."""
    kinds = [pipelines.kind[above] for above in pipelines.above(node)]
    if any(kind.endswith("Interleave") for kind in kinds):
        return False
    readers = [below for below in pipelines.below(node) if pipelines.kind[below] in READERS]
    if pipelines.kind[node] == "Interleave":
        return bool(readers)
    # A reader of several files is a FlatMap over their names.
    return pipelines.kind[node] == "FlatMap" and any(
        pipelines.repeats[reader] > 1 for reader in readers
    )


class TfdataSequentialMap(SlowPipeline):
    """A tf.data map runs one call after the other while the step waits for it."""

    id = "tfdata-sequential-map"
    title = "Run the map's calls in parallel"

    few_calls_share = 0.5
    """The step itself may need the cores if more than half are in use."""

    minimum_run_ns = Limit(
        30_000, "ns", "Passing a shorter call to another thread takes as long as running it."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        pipelines = tfdata(signals)
        cores = available_cores(pipelines)
        for node in range(len(pipelines)):
            calls = _parallel_calls(pipelines, node)
            has_few = calls == 1 or (calls > 1 and calls <= self.few_calls_share * cores)
            if not has_few:
                continue
            mean_ns = pipelines.function_ns[node] / pipelines.function_count[node]
            if mean_ns < self.minimum_run_ns:
                continue
            claims = stalls_of(pipelines, (node,))
            stall_ns = total_ns(claims)
            if self.is_minor(stall_ns, signals):
                continue
            saved_ns = min(stall_ns, round(_work_ns(signals, node) * (1 - calls / cores)))
            most_ns = stall_ns
            if (limit := overlap_limit(signals)) is not None:
                most_ns, saved_ns = min(most_ns, limit.high_ns), min(saved_ns, limit.expected_ns)
            if self.is_minor(saved_ns, signals):
                continue
            call_count = "one call" if calls == 1 else f"{calls} calls"
            yield Finding(
                instance=f"{pipelines.kind[node]} runs {call_count} at a time",
                summary=(
                    f"{per_step(stall_ns, signals)} is spent waiting for {pipelines.kind[node]},"
                    f" which runs {call_count} of its function at a time on {cores} cores."
                ),
                saving=Saving(
                    min(
                        saving_of_doubled_input_rate_ns(stall_ns, signals.attribution.window_ns),
                        saved_ns,
                    ),
                    saved_ns,
                    max(most_ns, saved_ns),
                    claims,
                    "modeled",
                ),
                evidence=iterator_evidence(signals, (node,), claims),
                remedies=advise("parallel-map", "larger-thread-pool"),
            )


def _parallel_calls(pipelines: Pipelines, node: int) -> int:
    """How many calls of a map's function run at a time; 0 for no map, or where it adapts."""
    kind, parallelism = pipelines.kind[node], int(pipelines.parallelism[node])
    if kind not in MAPS or not pipelines.function_count[node]:
        return 0
    if any(pipelines.kind[above] == "ParallelInterleave" for above in pipelines.above(node)):
        return 0
    if kind == "Map":
        return 1
    return 0 if pipelines.is_autotuned[node] == 1 else max(parallelism, 0)


def _work_ns(signals: Signals, node: int) -> int:
    """How long any call of the function runs during the used steps."""
    window = signals.attribution
    work = tfdata(signals).work[node]
    return total_ns(clip(work, window.window_start_ns, window.window_end_ns))


class TfdataUncachedSource(SlowPipeline):
    """The same records are read and decoded in every epoch although they fit in memory."""

    id = "tfdata-uncached-source"
    title = "Cache a dataset that fits in memory"

    memory_share = 0.25
    """The model, buffers and the page cache need host memory, too."""
    maximum_bytes = 1e9
    """Any training host can spare this much; used if the size of its memory is unknown."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        pipelines = tfdata(signals)
        for node in range(len(pipelines)):
            if pipelines.kind[node] not in REPEATS:
                continue
            below = [
                iterator
                for child in pipelines.children(node)
                for iterator in pipelines.below(child)
            ]
            if any("Cache" in pipelines.kind[iterator] for iterator in below):
                continue
            claims = stalls_of(pipelines, below)
            stall_ns = total_ns(claims)
            if self.is_minor(stall_ns, signals):
                continue
            size = _epoch_bytes(signals, pipelines, node)
            if size is None or size > self._available_bytes(pipelines) or _is_random(signals):
                continue
            yield Finding(
                instance=f"an epoch is only {format_bytes(size)}",
                summary=(
                    f"{per_step(stall_ns, signals)} is spent waiting for records that are read and"
                    f" decoded again in each epoch, although an epoch is only {format_bytes(size)}."
                ),
                saving=Saving(
                    saving_of_doubled_input_rate_ns(stall_ns, signals.attribution.window_ns),
                    stall_ns,
                    stall_ns,
                    claims,
                    "measured",
                ),
                evidence=iterator_evidence(signals, below, claims),
                remedies=advise("cached-records"),
            )

    def _available_bytes(self, pipelines: Pipelines) -> float:
        if pipelines.memory_bytes is None:
            return self.maximum_bytes
        return self.memory_share * pipelines.memory_bytes


def _epoch_bytes(signals: Signals, pipelines: Pipelines, node: int) -> int | None:
    """The size of the records of one epoch; None if the profile contains no whole epoch."""
    (child, *siblings) = pipelines.children(node) or [-1]
    if child < 0 or siblings:
        return None
    table = signals.trace.iterators
    iterator = signals.trace.by_event(table.row, table.iterator, 0)[pipelines.call_rows[child]]
    _, first, count = np.unique(iterator, return_index=True, return_counts=True)
    # The first epoch may have begun before the profile, and the last may end after it.
    whole = count[np.argsort(first)][1:-1]
    size = element_bytes(
        pipelines.shapes[child],
        pipelines.types[child],
        batch_size=int(pipelines.batch_size[child]),
    )
    return None if size is None or not whole.size else int(whole.max()) * size


_RANDOM = regex(r"[Rr]andom|[Ss]ample_?[Dd]istorted|[Mm]ultinomial")


def _is_random(signals: Signals) -> bool:
    trace = signals.trace
    names = distinct(trace.events.name[function_operators(signals)])
    return any(_RANDOM.search(trace.strings[name]) for name in names.tolist())


_MAPS = ("Map", "ParallelMap")


class TfdataUnfusedMapBatch(SlowPipeline):
    """A single thread copies the elements of each batch together, after a map."""

    id = "tfdata-unfused-map-batch"
    title = "Fuse the map with the batch that follows it"

    minimum_batch = 16
    """Copying fewer elements takes little time."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        pipelines = tfdata(signals)
        for node in range(len(pipelines)):
            maps = [child for child in pipelines.children(node) if pipelines.kind[child] in _MAPS]
            size = int(pipelines.batch_size[node])
            if pipelines.kind[node] != "Batch" or not maps or 0 <= size < self.minimum_batch:
                continue
            claims = stalls_of(pipelines, (node, *maps))
            copying_ns = pipelines.stall_ns(node)
            if self.is_minor(copying_ns, signals):
                continue
            yield Finding(
                instance=pipelines.kind[maps[0]],
                summary=(
                    f"{per_step(copying_ns, signals)} is spent waiting while one thread copies"
                    f" batches of {size if size > 0 else 'many'} elements together after"
                    f" {pipelines.kind[maps[0]]}."
                ),
                saving=Saving(0, copying_ns, total_ns(claims), claims, "modeled"),
                evidence=iterator_evidence(signals, (node, *maps), claims),
                remedies=advise("fused-map-batch", "parallel-batch"),
            )
