"""Planes of hosts: threads, and iterators of tf.data.

The name of an event mostly determines its kind, so each distinct name is classified once. Stats
then override the kind by name.

The calls of a tf.data iterator have its number and its parent's. A user function that starts on one
thread runs on others; all its events have the number of the run.

Some runtime calls are on lines of their own. A framework calls a PJRT plugin (libtpu) on its own
thread. The plugin has a tracer of its own, which writes what happens inside to another line. Both
sides of the call carry the same context.

ROCm's tracer writes the calls to lines such as `Host Threads/2356`, whose numbers are not those of
the calling threads. The calls lie inside the executions of their thread, and inside the range with
the name of the same XLA operation.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.ingest.xspace.decode.events import Events, Line, Lines
from tb_perfadvisor.ingest.xspace.decode.space import Plane
from tb_perfadvisor.ingest.xspace.interpret.detail_texts import parse_shapes
from tb_perfadvisor.ingest.xspace.interpret.run_links import HostRuns
from tb_perfadvisor.ingest.xspace.interpret.tpu_planes import HloOperations
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import Assembler, EventKind, TrackKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import contains, last_before, minus, union
from tb_perfadvisor.trace.tables import Int32, Int64

_CALL: Final = regex(r"Iterator::")
_START: Final = regex(r"InstantiatedCapturedFunction::")
_EXECUTOR: Final = "ExecutorState::Process"
_EXECUTION: Final = regex(rf"{_EXECUTOR}$|ExecutorDoneCallback$")
_BYTES_PER_MB: Final = 1_000_000  # tensorflow/core/framework/dataset.cc: BuildTraceMeName
_MAX_INT32: Final = 2**31 - 1


class Iterators:
    """The iterators of a host plane."""

    def __init__(self, plane: Plane) -> None:
        """Find the events of iterators in a host plane."""
        self._plane = plane
        names = plane.metadata.names if plane.has_iterators else []
        self._is_call, self._is_start, self._is_execution = (
            np.array([bool(pattern.match(name)) for name in names], dtype=bool)
            for pattern in (_CALL, _START, _EXECUTION)
        )
        self._is_executor = np.array([name == _EXECUTOR for name in names], dtype=bool)
        self._runs = np.empty(0, dtype=np.int64)
        if self._is_start.any():
            self._runs = distinct(
                np.concatenate(
                    [
                        batch.numbers("id", 0)[self._is_start[batch.row]]
                        for batch in plane.events.in_batches(plane.lines)
                    ]
                )
            )

    def in_functions(self, threads: Lines) -> NDArray[np.bool_]:
        """Which events begin while their thread executes a user function; shape (events,).

        An executor of the step may run inside, because a step that waits for an element resumes on
        the thread that produced it. What the executor runs is not part of the function.
        """
        is_inside = np.zeros(len(threads), dtype=bool)
        if not self._runs.size:
            return is_inside
        executed = self._is_executor[threads.row]
        id_ = threads.numbers("id", 0)
        runs = executed & is_in(id_, self._runs) & (id_ != 0)
        for line, place in threads.with_any(runs):
            start, end, is_run = line.start_ns, line.start_ns + line.duration_ns, runs[place]
            functions = union(start[is_run], end[is_run])
            is_other = executed[place] & ~is_run & contains(functions, start)
            own = minus(functions, union(start[is_other], end[is_other]))
            is_inside[place] = contains(own, start)
        return is_inside

    def add(self, assembler: Assembler, threads: Events, kept: Int64, events: Int32) -> None:
        """Add the attributes of the events of threads.

        `threads` has all events of the threads, `kept` those that were added, and `events` their
        provisional ids; both have shape (kept,).
        """
        if not self._is_call.any():
            return
        row = threads.row[kept]
        id_ = threads.numbers("id", 0)[kept]
        is_call = self._is_call[row]
        is_run = self._is_start[row] | self._is_execution[row]
        is_run &= is_in(id_, self._runs) & (id_ != 0)
        selected = np.flatnonzero(is_call | is_run)
        if not selected.size:
            return
        is_call, id_ = is_call[selected], id_[selected]
        place = kept[selected]

        def whole(stat: str, least: int = 0) -> Int64:
            values: Int64 = threads.numbers(stat)[place]
            return np.where((values >= least) & (values <= _MAX_INT32) & is_call, values, -1)

        def size(stat: str) -> Int64:
            megabytes = whole(stat)
            return np.where(megabytes >= 0, megabytes * _BYTES_PER_MB, -1)

        assembler.add_iterators(
            events[selected],
            iterator=np.where(is_call, id_, 0),
            parent=np.where(is_call, threads.numbers("parent_id", 0)[place], 0),
            run=np.where(is_call, 0, id_),
            dataset=_texts(assembler, threads, "name", place, is_call),
            shapes=_texts(assembler, threads, "shapes", place, is_call),
            types=_texts(assembler, threads, "types", place, is_call),
            parallelism=whole("parallelism"),
            is_autotuned=_flag(threads, "autotune")[place],
            batch_size=whole("batch_size"),
            # Prefetch has a limit, shuffle a size.
            buffer_size=np.maximum(whole("buffer_limit"), whole("buffer_size")),
            buffered=whole("buffered_elements"),
            buffered_bytes=size("buffered_bytes_MB"),
            cores=whole("cpu_budget", least=1),
            threads=whole("threadpool_size"),
            memory_bytes=size("ram_budget_megabytes"),
        )


def _texts(
    assembler: Assembler, threads: Events, stat: str, place: Int64, is_call: NDArray[np.bool_]
) -> NDArray[Any]:
    """The string index of a text stat for the given events; -1 if missing."""
    index, texts = threads.texts(stat)
    known = np.append(assembler.intern_all(texts), np.int32(-1))
    return np.where(is_call, known[index[place]], -1)


def _flag(threads: Events, stat: str) -> Int64:
    """A text stat that is `true` (1) or `false` (0); -1 for others."""
    index, texts = threads.texts(stat)
    known = np.array([*({"false": 0, "true": 1}.get(text, -1) for text in texts), -1])
    flags: Int64 = known[index]
    return flags


# Events of the tracer itself, and events that other tables contain.
_DROPPED: Final = regex(
    r"ThreadpoolListener::(Record|StartRegion|StopRegion)$|Memory(Allocation|Deallocation)$"
)

# Frames that fetch the next batch, as the Python tracer names them.
_FETCHING_FRAME: Final = regex(
    r"\$(dataloader|data_loader|dataset_utils|iterator_ops|lazy_dataset|parallel_loader)\.py:\d+ "
    r"(__next__|next|get_next|_next_internal)$"
)
# Functions of the program that make a batch, by what people call them, and of Python's queues, in
# which another thread or process puts it. In a JAX program nothing else tells them from other code
# between two steps.
_DATA: Final = r"(mini_?)?batch|data|sample|example|input|token|sequence|image|pair|shard|epoch"
_BATCH_MAKING_FRAME: Final = regex(
    r"^\$(builtins next$|queues?\.py:\d+ get$|[^:]*\.py:\d+ ("
    rf"_*(get|make|load|read|fetch|draw|sample|prepare|create|build|gen(erate)?|produce|next|random"
    rf"|preprocess|augment|collate|decode|tokenize|shuffle|stack|iter(ate)?|yield)_(\w+_)?({_DATA})"
    rf"(s|es)?(_\w+)?|\w*batch(es|_?(iter\w*|gen\w*|loader|stream))|\w*data_?(iter\w*|gen\w*|loader"
    r"|stream)|batch|augment(ed)?|collate(_fn)?|next_batch|__next__)$)"
)
_NEXT: Final = regex(r"\$builtins next$")
_FRAME: Final = regex(r"\$")
_WAITING_FRAME: Final = regex(r"\$\w+\.py:\d+ (block_until_ready|effects_barrier)$")

# The first pattern that matches at the start of the name decides.
_KINDS: Final = (
    (
        r"IteratorGetNext\w*::DoCompute$|EagerLocalExecute: IteratorGetNext"
        r"|(IteratorGetNext\w*|.*:IteratorGetNext\w*)$|WaitForNextBatch"
        # Grain's iterators annotate themselves (grain/_src/python/dataset/stats.py).
        r"|\w*DatasetIterator\.__next__$"
        r"|enumerate\(DataLoader\)#",
        EventKind.INPUT_WAIT,
    ),
    (
        r"Iterator::|InstantiatedCapturedFunction::"
        r"|(Map\w*|Parallel\w*|Prefetch\w*|Batch\w*|Shuffle\w*|Interleave\w*)"
        r"(Produce|Consume)$"
        r"|\w*MapDataset\.__getitem__$|Prefetch\._getitem$",
        EventKind.INPUT_WORK,
    ),
    (
        # JAX: tracing, lowering, compiling. XLA: the compilers' entry points.
        r"trace_to_jaxpr|lower_jaxpr|lower_sharding_computation|backend_compile"
        r"|tf\.function-graph_building|XlaCompil|XLA::TPU lowering and optimization"
        r"|[\w:]*Compiler::|[\w:]*::(Compile|CompileAndLoad|RunBackend|RunHloPasses)$"
        r"|(Compile|CompileAndLoad)$",
        EventKind.COMPILE,
    ),
    (r"((?=\w+$)(cu|cuda|hip)[A-Z]\w*Synchronize(_|$))", EventKind.SYNCHRONIZE),
    (
        r"((cu|cuda)(Launch|GraphLaunch|Memcpy|Memset)"
        r"|hip(Ext)?(Module)?(Launch|GraphLaunch|Memcpy|Memset))\w*$",
        EventKind.LAUNCH,
    ),
    (
        r"((cu|cuda|hip)(Mem(Alloc|Free|Host|Pool|Create|Map|Unmap|Release)|Malloc|Free"
        r"|Host(Alloc|Malloc|Free|Register|Unregister)|Array(Create|Destroy))\w*)$"
        r"|DeferredTpuAllocator::Allocate$|DeviceMemAllocator::Alloc$",
        EventKind.ALLOCATE,
    ),
    (r"((cu|cuda|hip|roc)[A-Z]\w*)$", EventKind.RUNTIME),
    (
        r"[\w:]*(::Await|BlockHostUntilDone|BlockHostUntilReady|BlockUntilReady)$"
        r"|np\.asarray\(jax\.Array\)$|block_until_ready",
        EventKind.SYNCHRONIZE,
    ),
    (r"(DoEnqueueProgram|EnqueueProgram)$", EventKind.LAUNCH),
    (r"(Invoke)?Rendezvous\b|Wait for rendezvous callback$", EventKind.HOST_COLLECTIVE),
    (r"Wait: pending_threads=", EventKind.HOST_COLLECTIVE),
    # A function that runs as an op; the ops of its body are recorded separately.
    (r"[^:\s]+:__(inference|forward|backward)_\w*$", EventKind.ANNOTATION),
    # A TensorFlow op: `name:type`; the type has no spaces, the name no colon.
    (r"[A-Za-z0-9_.][^:\s]*:[A-Za-z_]\w*$", EventKind.OPERATOR),
    (r"EagerLocalExecute: (?!__inference_|__forward_|__backward_)", EventKind.OPERATOR),
    # PyTorch's operators, which PyTorch/XLA may record.
    (r"aten::\w+$|autograd::engine::evaluate_function: ", EventKind.OPERATOR),
)
# A single pattern, whose last group tells which alternative matched.
_KIND: Final = regex("|".join(f"(?P<k{i}>{pattern})" for i, (pattern, _) in enumerate(_KINDS)))
_COLLECTIVE_OP: Final = regex(
    r"(all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute"
    r"|collective-broadcast)\b"
)
# Kinds by name that stats and threads override.
_IS_TENTATIVE: Final = np.isin(np.arange(256), (EventKind.ANNOTATION, EventKind.OPERATOR))
_JITTED_CALL: Final = regex(r"PjitFunction\(")
# Making a batch may convert and move arrays.
_LIBRARY_CALL: Final = regex(
    r"PjitFunction\((convert_element_type|stage|concatenate|stack|asarray|astype|reshape|_multi_slice"
    r"|broadcast_in_dim|expand_dims|squeeze|_squeeze|true_divide|divide|multiply|subtract|add|take"
    r"|_take|gather|_where|pad|_pad|_uniform|_normal|_normal_real|_randint|_threefry_\w+)\)$"
)
# Taking the next element of a list takes less: it shows no input pipeline.
_SHORTEST_FETCH_NS: Final = 10_000
# Between the loop and what fetches a batch are a few generators that wrap each other. Deeper, as
# where a library draws a list of images, such names mean something else.
_MOST_WRAPPERS: Final = 3
# Threads with a single purpose.
_INPUT_THREAD: Final = regex(r"tf_data_")
_COMPILE_THREAD: Final = regex(r"(?i).*(compil|codegen)")


class HostContext(Struct, frozen=True):
    """Facts about a host that its plane does not contain."""

    has_device: bool
    has_tpu: bool
    thread_of_line: dict[int, tuple[int, str]]
    """The actual (thread, label) of a line's events, by line id."""
    operations: HloOperations
    runs: HostRuns


def kind_of_name(name: str, *, has_device: bool) -> EventKind:
    """The kind of an event on a host thread, by name."""
    if name.startswith("$"):
        if _FETCHING_FRAME.match(name):
            return EventKind.INPUT_WAIT
        return EventKind.SYNCHRONIZE if _WAITING_FRAME.match(name) else EventKind.PYTHON
    match = _KIND.match(name)
    if match is None:
        return EventKind.ANNOTATION
    kind = _KINDS[int(str(match.lastgroup)[1:])][1]
    if kind == EventKind.OPERATOR and not has_device and ":Collective" in name:
        return EventKind.HOST_COLLECTIVE
    return kind


def add_host_plane(assembler: Assembler, plane: Plane, context: HostContext) -> None:
    """Add every thread of a host plane."""
    names = plane.metadata.names
    by_name = np.array(
        [kind_of_name(name, has_device=context.has_device) for name in names], dtype=np.uint8
    )
    is_dropped = np.array([bool(_DROPPED.match(name)) for name in names])
    string = assembler.intern_all(names)
    iterators = Iterators(plane)
    for threads in plane.events.in_batches(plane.lines):
        _add_threads(assembler, threads, by_name, is_dropped, string, context, iterators)


def _add_threads(
    assembler: Assembler,
    threads: Lines,
    by_name: NDArray[np.uint8],
    is_dropped: NDArray[np.bool_],
    string: NDArray[np.int32],
    context: HostContext,
    iterators: Iterators,
) -> None:
    is_kept = ~is_dropped[threads.row]
    kept = np.flatnonzero(is_kept)
    if not kept.size:
        return
    name = string[threads.row]
    kind = by_name[threads.row]
    correlation = threads.numbers("correlation_id")
    is_call = (correlation >= 0) & _IS_TENTATIVE[kind]
    # Older TensorFlow versions name a call after the kernel that it launches.
    kind[is_call] = EventKind.LAUNCH

    _mark_eager_calls(assembler, threads, kind, name)
    collective = _mark_thunks(threads, kind)
    _mark_traced_calls(threads, kind)
    for line, place in threads.with_any(threads.named(_JITTED_CALL)):
        _mark_compiling_calls(line, kind[place])
        _mark_batch_making(line, kind[place])
    _mark_single_purpose(threads, kind)
    # Operators of user functions run on any thread.
    kind[(kind == EventKind.OPERATOR) & iterators.in_functions(threads)] = EventKind.INPUT_WORK

    # Few threads have steps or TPU launches.
    step: Int64 | int = -1
    number = threads.numbers("step_num")
    is_step = number >= 0
    if is_step.any():
        kind[is_step] = EventKind.STEP
        step = np.where(is_step, np.minimum(number, 2**31 - 1), -1)[kept]

    if context.has_tpu:
        correlation = context.runs.add(threads, kind, correlation)
    track = np.full(len(threads), -1, dtype=np.int32)
    for line, place in threads.with_any(is_kept):
        thread, label = context.thread_of_line.get(line.id, (line.id, line.name))
        track[place] = assembler.add_track(TrackKind.HOST_THREAD, thread=thread, label=label)
    kind = kind[kept]
    events = assembler.add_events(
        threads.start_ns[kept],
        threads.duration_ns[kept],
        kind=kind,
        name=name[kept],
        track=track[kept],
        step=step,
        correlation=correlation[kept],
    )
    iterators.add(assembler, threads, kept, events)
    is_operator = kind == EventKind.OPERATOR
    # Without a device, thunks on the CPU are the operations.
    if not context.has_device:
        operation = context.operations.rows_of(threads, with_inside=True)[kept]
        linked = np.flatnonzero((operation >= 0) & is_operator)
        assembler.add_hlo_events(events[linked], operation[linked])
    of_collective, operations = collective
    of_collective = of_collective[kept]
    rows = np.flatnonzero(of_collective >= 0)
    if rows.size:
        named = assembler.intern_all(operations)
        assembler.add_collectives(events[rows], operation=named[of_collective[rows]])
    index, shapes = threads.texts("shape")
    index = index[kept]
    rows = np.flatnonzero((index >= 0) & is_operator)
    if rows.size:
        parsed = [parse_shapes(text) for text in shapes]
        slot = index[rows]
        assembler.add_operators(
            events[rows],
            shapes=assembler.intern_all([dimensions for dimensions, _ in parsed])[slot],
            dtypes=assembler.intern_all([dtypes for _, dtypes in parsed])[slot],
        )


def _mark_eager_calls(
    assembler: Assembler, threads: Lines, kind: NDArray[np.uint8], name: NDArray[np.int32]
) -> None:
    """Classify `EagerExecute` by its stat: an operator, a fetch or a function call."""
    index, texts = threads.texts("eager_op")
    if not texts:
        return
    # The last entry is for events without the stat (index -1).
    is_fetch = np.array([*(text.startswith("IteratorGetNext") for text in texts), False])[index]
    is_eager = np.array([*map(bool, texts), False])[index] & (kind != EventKind.INPUT_WAIT)
    # A function call includes waits, so it is not an operator.
    is_function = threads.numbers("is_func") > 0
    kind[is_eager & is_fetch] = EventKind.INPUT_WAIT
    kind[is_eager & ~is_fetch & ~is_function] = EventKind.OPERATOR
    names = assembler.intern_all([f"EagerExecute: {text}" for text in texts])
    name[is_eager] = names[index[is_eager]]


def _mark_thunks(threads: Lines, kind: NDArray[np.uint8]) -> tuple[Int64, list[str]]:
    """Classify XLA operations on host threads (thunks on the CPU).

    Returns for every event the index into the collectives (-1 for none), and the collectives.
    """
    index, texts = threads.texts("hlo_op")
    if not texts:
        return index, []
    matches = [_COLLECTIVE_OP.match(text) for text in texts]
    operations = [match[1] if match else "" for match in matches]
    is_collective = np.array([*map(bool, matches), False], dtype=bool)[index]
    is_thunk = (index >= 0) & _IS_TENTATIVE[kind]
    kind[is_thunk] = EventKind.OPERATOR
    kind[is_thunk & is_collective] = EventKind.HOST_COLLECTIVE
    return np.where(is_thunk & is_collective, index, -1), operations


def _mark_compiling_calls(line: Line, kind: NDArray[np.uint8]) -> None:
    """Classify calls of JAX's jitted functions that trace or compile as compilation.

    Tracing is Python code that records little of itself. So everything counts from the call, which
    misses the cache of compiled programs, to its return.
    """
    compiling = kind == EventKind.COMPILE
    if not compiling.any():
        return
    calls = np.flatnonzero(line.named(_JITTED_CALL) & (kind == EventKind.ANNOTATION))
    if not calls.size:
        return
    start, end = line.start_ns[calls], (line.start_ns + line.duration_ns)[calls]
    order = np.lexsort((-end, start))
    calls, start, end = calls[order], start[order], end[order]
    # Functions called while another one is traced belong to it.
    is_outermost = np.append(True, start[1:] >= np.maximum.accumulate(end)[:-1])
    compiles_at = np.sort(line.start_ns[compiling])
    compiles = np.searchsorted(compiles_at, end) > np.searchsorted(compiles_at, start)
    kind[calls[is_outermost & compiles]] = EventKind.COMPILE


def _mark_batch_making(line: Line, kind: NDArray[np.uint8]) -> None:
    """Classify Python frames that make batches between calls of jitted functions as fetches.

    A frame that calls a jitted function of the program, or waits for one, does the step's work.
    What the step consumes is fetched by a frame that does, or by a few calls of it.
    """
    frames = line.named(_BATCH_MAKING_FRAME) & (kind == EventKind.PYTHON)
    called = line.named(_JITTED_CALL)
    if not frames.any() or not called.any():
        return
    start, end = line.start_ns, line.start_ns + line.duration_ns
    own = called & ~line.named(_LIBRARY_CALL)
    step_at = np.sort(start[own | (kind == EventKind.SYNCHRONIZE)])
    working = union(start[called], end[called])
    frames &= np.searchsorted(step_at, end) == np.searchsorted(step_at, start)
    frames &= ~contains(working, start) & (line.duration_ns >= _SHORTEST_FETCH_NS)
    idle = line.named(_FRAME) & (np.searchsorted(step_at, end) == np.searchsorted(step_at, start))
    begun = np.searchsorted(np.sort(start[idle]), start)
    ended = np.searchsorted(np.sort(end[idle]), start, side="right")
    frames &= begun - ended <= _MOST_WRAPPERS
    # An iterator that names itself inside of `next()` tells more.
    wait_at = np.sort(start[kind == EventKind.INPUT_WAIT])
    has_wait = np.searchsorted(wait_at, end) > np.searchsorted(wait_at, start)
    frames &= ~(has_wait & line.named(_NEXT))
    kind[frames] = EventKind.INPUT_WAIT


def _mark_single_purpose(threads: Lines, kind: NDArray[np.uint8]) -> None:
    """Classify what threads do whose names say that they compile or prepare input."""
    compiles = [bool(_COMPILE_THREAD.match(line.name)) for line in threads.lines]
    kind[threads.of_lines(compiles) & (kind == EventKind.ANNOTATION)] = EventKind.COMPILE
    prepares = [bool(_INPUT_THREAD.match(line.name)) for line in threads.lines]
    kind[threads.of_lines(prepares) & _IS_TENTATIVE[kind]] = EventKind.INPUT_WORK


def _mark_traced_calls(threads: Lines, kind: NDArray[np.uint8]) -> None:
    """Classify `tf.function` calls that traced as compilation, if tracing has no own events."""
    index, texts = threads.texts("tf_function_call")
    if not texts or "tf.function-graph_building" in threads.names:
        return
    is_traced = np.array([text.startswith("traced") for text in texts], dtype=bool)
    kind[(index >= 0) & is_traced[index]] = EventKind.COMPILE


# The type of the contexts of calls into a plugin (tsl/profiler/lib/context_types.h).
LIBRARY_CALL: Final = 14

_API_LINE: Final = "Host Threads/"
# Less than 1, because the caller's side of the first calls may not be recorded.
_MIN_ENCLOSED_SHARE: Final = 0.9
_RUN: Final = regex(
    r"[\w:]*(::ExecuteThunks|::EnqueueExecution|::LinearizeHostBufferInto|CopyToDevice\w*)\b"
    r"|DevicePut|PjitFunction\("
)


def threads_of_plugin_lines(plane: Plane) -> dict[int, tuple[int, str]]:
    """Find the thread of each line of a plugin's tracer.

    Returns (thread, label) of the calling thread, by the id of the plugin's line.
    """
    caller_of: dict[int, Line] = {}
    entered: list[tuple[Line, Int64]] = []
    for threads in plane.events.in_batches(plane.lines):
        is_call = threads.numbers("_pt") == LIBRARY_CALL
        for line, place in threads.with_any(is_call):
            calls = threads.numbers("_p")[place][is_call[place]]
            caller_of |= dict.fromkeys(calls.tolist(), line)
        is_entry = threads.numbers("_ct") == LIBRARY_CALL
        for line, place in threads.with_any(is_entry):
            entered.append((line, threads.numbers("_c")[place][is_entry[place]]))
    found: dict[int, tuple[int, str]] = {}
    for line, contexts in entered:
        callers = Counter(
            (caller.id, caller.name)
            for context in contexts.tolist()
            if (caller := caller_of.get(context)) is not None and caller.id != line.id
        )
        for thread, count in callers.most_common(1):
            if count >= _MIN_ENCLOSED_SHARE * len(contexts):
                found[line.id] = thread
    return found


def threads_of_api_lines(plane: Plane) -> dict[int, tuple[int, str]]:
    """Find the thread of each line of runtime calls.

    Returns (thread, label) of the calling thread, by the id of the line of calls.
    """
    if not any(line.name.startswith(_API_LINE) for line in plane.lines):
        return {}
    is_run = np.array([bool(_RUN.match(name)) for name in plane.metadata.names])
    runs = [
        (line, _spans(line, is_run[line.row]))
        for line, _ in plane.events.with_any(is_run[plane.events.row])
        if not line.name.startswith(_API_LINE)
    ]
    threads: dict[int, tuple[int, str]] = {}
    for calls in plane.lines:
        if not calls.name.startswith(_API_LINE) or not len(calls) or not runs:
            continue
        shares = [_enclosed(calls, spans).mean() for _, spans in runs]
        # Parallel threads enclose each other's calls; the operation distinguishes them.
        same = [_same_operation_share(calls, line) for line, _ in runs]
        order = sorted(range(len(runs)), key=lambda slot: (same[slot], shares[slot]))
        best = order[-1]
        if shares[best] >= _MIN_ENCLOSED_SHARE:
            line = runs[best][0]
            threads[calls.id] = (line.id, line.name)
    return threads


def _same_operation_share(calls: Line, line: Line) -> float:
    """The share of calls inside an event with the name of their XLA operation."""
    index, operations = calls.texts("hlo_op")
    if not operations:
        return 0.0
    row_of = {name: row for row, name in enumerate(line.names)}
    is_same = np.zeros(len(calls), dtype=bool)
    for slot, operation in enumerate(operations):
        row = row_of.get(operation)
        if row is not None:
            spans = _spans(line, line.row == row)
            is_same |= (index == slot) & _enclosed(calls, spans)
    return float(is_same.mean())


def _spans(line: Line, wanted: NDArray[np.bool_]) -> tuple[Int64, Int64]:
    start, end = line.start_ns[wanted], (line.start_ns + line.duration_ns)[wanted]
    order = np.argsort(start, kind="stable")
    # For nested runs: an event is enclosed if any run that started before it ends after it.
    return start[order], np.maximum.accumulate(end[order]) if order.size else end


def _enclosed(calls: Line, spans: tuple[Int64, Int64]) -> NDArray[np.bool_]:
    if not spans[0].size:
        return np.zeros(len(calls), dtype=bool)
    slot = last_before(spans[0], calls.start_ns)
    end = calls.start_ns + calls.duration_ns
    is_enclosed: NDArray[np.bool_] = (slot >= 0) & (end <= spans[1][np.maximum(slot, 0)])
    return is_enclosed
