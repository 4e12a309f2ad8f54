"""Which work belongs to which step.

Calls of JAX's jitted functions, and the programs that they run.

JAX records a call of a jitted function `f` as `PjitFunction(f)`, twice, one inside the other. The
call runs the program `jit_f`. While `f` is traced, the jitted functions that it calls are recorded,
too, inside its call.

When XLA programs run on the CPU.

JAX records only operations there. A run lasts from its first to its last operation, and the least
frequent operations of a program execute once in each run (operations inside loops execute more
often).

The work of a device, and when the host launched it.

A step owns the work that it launched, so each event of the device needs the moment of its launch.
The first of these that the file has tells it:

1. the call that launched it, by correlation, run id or context, as the reader linked them;
2. the device's own line of steps, if its numbers are those of the host's markers;
3. the order, if one program ran exactly once per step or per call.

The threads on which XLA's CPU client runs programs count as a device.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.device import DeviceTimeline
from tb_perfadvisor.signals.core.steps.marker_rows import Markers
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in, row_mask, unique_inverse
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.nesting import nearest
from tb_perfadvisor.trace.tables import Int32, Int64

_CALL = regex(r"^PjitFunction\((?P<function>.+)\)$")
_PROGRAM_ID = regex(r"\(\d+\)$")
DERIVATIVE = "transpose(jvp("
"""In the path of an operation that JAX's reverse mode made."""
_FEWEST_INSIDE = 10
"""Calls of a function in each step that make a loop; a few may be parts of a step."""
_NOT_IN_PROGRAM_NAMES = regex(r"[^\w.-]")

LIBRARY = frozenset(
    {
        *("abs", "absolute", "add", "all", "any", "arange", "arctan2", "argmax", "argmin"),
        *("argsort", "array_equal", "astype", "bitwise_and", "bitwise_or", "broadcast_in_dim"),
        *("broadcast_to", "ceil", "clip", "concatenate", "convert_element_type", "cos"),
        *("cosh", "cumprod", "cumsum", "divide", "dot", "dynamic_slice"),
        *("dynamic_update_slice", "einsum", "equal", "erf", "exp", "exp2", "expand_dims"),
        *("expm1", "eye", "flip", "floor", "floor_divide", "full_like", "gather", "gelu"),
        *("greater", "greater_equal", "hypot", "integer_pow", "isfinite", "isinf", "isnan"),
        *("leaky_relu", "less", "less_equal", "linspace", "log", "log10", "log1p"),
        *("log2", "log_softmax", "logaddexp", "logical_and", "logical_not", "logical_or"),
        *("logistic", "logsumexp", "matmul", "max", "maximum", "mean", "min", "minimum", "mod"),
        *("multiply", "nan_to_num", "negative", "not_equal", "ones_like", "outer", "pad"),
        *("power", "prod", "ravel", "reciprocal", "relu", "remainder", "repeat", "reshape"),
        *("roll", "round", "rsqrt", "scatter", "searchsorted", "sigmoid", "sign", "silu", "sin"),
        *("sinh", "softmax", "softplus", "sort", "split", "sqrt", "square", "squeeze", "stack"),
        *("stage", "std", "subtract", "sum", "swapaxes", "take", "take_along_axis", "tan", "tanh"),
        *("tensordot", "tile", "transpose", "tril", "triu", "true_divide", "var", "where"),
        "zeros_like",
        *("_argmax", "_argmin", "_broadcast_arrays", "_einsum", "_flip", "_linspace", "_mean"),
        *("_moveaxis", "_multi_slice", "_one_hot", "_pad", "_power", "_reduce_all"),
        *("_reduce_any", "_reduce_max", "_reduce_min", "_reduce_prod", "_reduce_sum", "_rem"),
        *("_roll_dynamic", "_roll_static", "_softmax", "_split", "_squeeze", "_std", "_take"),
        *("_unstack", "_var", "_variance", "_where"),
        *("_bernoulli", "_categorical", "_normal", "_normal_real", "_randint", "_shuffle"),
        *("_threefry_fold_in", "_threefry_random_bits", "_threefry_seed", "_threefry_split"),
        *("_truncated_normal", "_uniform"),
    }
)
"""Functions of jax.numpy, jax.lax, jax.nn and jax.random are jitted individually: outside of a jit,
each call is a program of one operator. Names of jax/_src/numpy (ufuncs, reductions, lax_numpy), of
jax/_src/lax primitives, jax/_src/nn and jax/_src/random.py; as PjitFunction(NAME) in JAX 0.4 to
0.10."""


class FunctionCalls(Struct, frozen=True):
    """The top-level calls of one jitted function of the program."""

    function: str
    rows: Int32
    """On one thread, in order of start."""
    total_ns: int
    """Time of the calls and, on the CPU, of the operations that they run."""


def is_jitted_call(trace: Trace, rows: Int32) -> NDArray[np.bool_]:
    """Which rows are calls of jitted functions."""
    names = trace.events.name[rows]
    return is_in(names, [n for n in distinct(names).tolist() if function_of(trace.strings[n])])


def top_level_calls(trace: Trace) -> Int32:
    """Calls of jitted functions that no other such call and no compilation encloses, by start."""
    events, rows = trace.events, trace.rows(EventKind.ANNOTATION, EventKind.COMPILE)
    rows = rows[is_jitted_call(trace, rows)]
    if len(rows) == 0:
        return rows
    encloses = row_mask(len(events), rows) | (events.kind == EventKind.COMPILE)
    parent = events.parent[rows]
    is_inside = (parent >= 0) & (nearest(events.parent, encloses)[parent] >= 0)
    return rows[~is_inside]


def calls_by_function(trace: Trace) -> list[FunctionCalls]:
    """The program's own jitted functions, by their top-level calls on the main thread.

    That is the thread with most time in such calls. Functions of JAX's library are left out.
    """
    events, rows = trace.events, top_level_calls(trace)
    if len(rows) == 0:
        return []
    time_ns = np.bincount(events.track[rows], weights=events.duration_ns[rows] + 1)
    rows = rows[events.track[rows] == int(time_ns.argmax())]
    program_ns = _time_of_programs(trace)
    names, name = unique_inverse(events.name[rows])
    found = []
    for number, string in enumerate(names.tolist()):
        function, calls = function_of(trace.strings[string]), rows[name == number]
        if function not in LIBRARY:
            total_ns = int(events.duration_ns[calls].sum())
            total_ns += program_ns.get(program_of(function), 0)
            found.append(FunctionCalls(function, calls, total_ns))
    return found


def most_costly_function(trace: Trace, fewest: int, shortest_ns: int) -> FunctionCalls | None:
    """The function with most time, among those called repeatedly at intervals; None if none is.

    It has at least `fewest` calls. If the program calls several functions, the median time from one
    call to the next is at least `shortest_ns`. Calls that return before their work is done may
    follow faster: then the time of the work counts.
    """
    # The steps of a program may be shorter if it calls nothing else.
    is_only = len(distinct(trace.events.name[top_level_calls(trace)])) == 1
    candidates = [
        calls
        for calls in calls_by_function(trace)
        if len(calls.rows) >= fewest and (is_only or _usual_period_ns(trace, calls) >= shortest_ns)
    ]
    costliest = max(candidates, key=lambda calls: calls.total_ns, default=None)
    return None if costliest is None else _training_around(trace, costliest, candidates)


def _training_around(
    trace: Trace, costliest: FunctionCalls, candidates: list[FunctionCalls]
) -> FunctionCalls:
    """The function that computes gradients, if each of its calls follows many of the costliest.

    In a simulation whose every episode is learned from, or a batch whose samples are taken one by
    one, the costliest function is called in a loop of each step.
    """
    trains = _differentiated(trace)
    if program_of(costliest.function) in trains:
        return costliest
    start_ns = trace.events.start_ns
    for calls in candidates:
        if program_of(calls.function) in trains:
            inside = np.searchsorted(start_ns[costliest.rows], start_ns[calls.rows])
            if int(np.diff(inside).min()) >= _FEWEST_INSIDE:
                return calls
    return costliest


def _differentiated(trace: Trace) -> set[str]:
    """The names of the programs with operations of a derivative, without their numbers."""
    derives = np.array([DERIVATIVE in path for path in trace.texts(trace.hlo.path)], dtype=bool)
    modules = distinct(trace.hlo.module[derives]) if len(derives) else ()
    return {program_name(trace.text(int(module))) for module in modules}


def _usual_period_ns(trace: Trace, calls: FunctionCalls) -> float:
    apart_ns = float(np.median(np.diff(trace.events.start_ns[calls.rows])))
    return max(apart_ns, calls.total_ns / len(calls.rows))


def function_of(name: str) -> str:
    """The function that an event named `PjitFunction(f)` calls; empty for other events."""
    match = _CALL.match(name)
    return match["function"] if match else ""


def program_of(function: str) -> str:
    """The name of a jitted function's program without its number: `jit_f`.

    Source: `sanitize_name` in jax/_src/interpreters/mlir.py.
    """
    return _without_end(_NOT_IN_PROGRAM_NAMES.sub("_", f"jit_{function}"))


def _without_end(program: str) -> str:
    # Some versions end the program of `<lambda>` with an underscore, others don't.
    return program.rstrip("_")


def _time_of_programs(trace: Trace) -> dict[str, int]:
    """The time of the operations of each program, by its name without its number."""
    table = trace.hlo_events
    programs, program = unique_inverse(trace.hlo.module[table.op])
    weight = np.bincount(program, weights=trace.events.duration_ns[table.row])
    total_ns: dict[str, int] = {}
    for string, time_ns in zip(programs.tolist(), weight.tolist(), strict=True):
        name = program_name(trace.text(string))
        total_ns[name] = total_ns.get(name, 0) + int(time_ns)
    return total_ns


def program_name(module: str) -> str:
    """The name of a program without its number: `jit_f` for `jit_f(77)`."""
    return _without_end(_PROGRAM_ID.sub("", module))


class CpuRuns(Struct, frozen=True):
    """Runs of programs in order of start; each device has its own. Columns of shape (runs,)."""

    start_ns: Int64
    end_ns: Int64
    module: Int32
    """String: the program."""

    def __len__(self) -> int:
        """Number of runs."""
        return len(self.start_ns)


def cpu_runs(trace: Trace) -> CpuRuns:
    """The runs of all programs, from their operations."""
    events, table = trace.events, trace.hlo_events
    if not len(table.row):
        none = np.empty(0, dtype=np.int64)
        return CpuRuns(none, none, none.astype(np.int32))
    order = np.lexsort((events.start_ns[table.row], table.op))
    row, op = table.row[order], table.op[order]
    count = np.bincount(op, minlength=len(trace.hlo.name))
    modules, module = unique_inverse(trace.hlo.module)
    least = np.full(len(modules), np.iinfo(np.int64).max)
    executed = count > 0
    np.minimum.at(least, module[executed], count[executed])
    # The n-th execution of such an operation belongs to the n-th run.
    first = np.concatenate(([0], np.cumsum(count)))
    number = np.arange(len(op)) - first[op]
    once = count[op] == least[module[op]]
    runs = np.where(least < np.iinfo(np.int64).max, least, 0)
    run = np.concatenate(([0], np.cumsum(runs)))
    slot = run[module[op[once]]] + number[once]
    start = np.full(int(run[-1]), np.iinfo(np.int64).max)
    end = np.zeros(int(run[-1]), dtype=np.int64)
    np.minimum.at(start, slot, events.start_ns[row[once]])
    np.maximum.at(end, slot, events.end_ns[row[once]])
    in_time = np.argsort(start, kind="stable")
    return CpuRuns(start[in_time], end[in_time], np.repeat(modules, runs)[in_time])


def runs_of_function(trace: Trace, function: str) -> CpuRuns:
    """The runs of a jitted function's program, whatever the shapes; one for devices in parallel."""
    runs = cpu_runs(trace)
    modules, module = unique_inverse(runs.module)
    names = [program_name(trace.text(string)) for string in modules.tolist()]
    is_own = np.array([name == program_of(function) for name in names], dtype=bool)[module]
    start, end, of_run = runs.start_ns[is_own], runs.end_ns[is_own], runs.module[is_own]
    reach = np.concatenate(([-1], np.maximum.accumulate(end)[:-1])) if len(end) else end
    is_first = start >= reach
    return CpuRuns(start[is_first], end[is_first], of_run[is_first])


UNKNOWN = -1
_LINKED_SHARE = 0.5
"""If less of the device's time has a known launch, links say too little about whose work it is."""


class LaunchedWork(Struct, frozen=True):
    """Work of the device that stands for the rank, in order of start. Columns of shape (rows,)."""

    rows: Int32
    launched_ns: Int64
    """When the host launched it; -1 if unknown."""
    by_order: str = ""
    """The program whose runs were matched with steps or calls by their order; empty if the file
    says which call launched what."""


def launched_work(trace: Trace, timeline: DeviceTimeline, markers: Markers | None) -> LaunchedWork:
    """The work of a device, or of the threads of XLA's CPU client, and when it was launched."""
    if timeline.index is None:
        return _work_of_cpu_programs(trace)
    work = _linked(trace, timeline.rows)
    if (work.launched_ns >= 0).any() or markers is None or markers.is_on_device:
        return work
    return _by_step_line(trace, timeline, markers) or _by_modules(trace, timeline, markers) or work


def _linked(trace: Trace, rows: Int32) -> LaunchedWork:
    launch = trace.events.launched_by[rows]
    return LaunchedWork(rows, np.where(launch >= 0, trace.events.start_ns[launch], UNKNOWN))


def is_linked(trace: Trace, timeline: DeviceTimeline) -> bool:
    """Whether the file says which calls launched most of the device's work."""
    work = _linked(trace, timeline.rows)
    duration_ns = trace.events.duration_ns[work.rows]
    linked_ns = int(duration_ns[work.launched_ns >= 0].sum())
    return linked_ns > 0 and linked_ns >= _LINKED_SHARE * int(duration_ns.sum())


def _by_step_line(trace: Trace, timeline: DeviceTimeline, markers: Markers) -> LaunchedWork | None:
    """The work inside each step of the device's line, by the number of the step."""
    rows = trace.rows(EventKind.DEVICE_STEP)
    rows = rows[trace.tracks.device[trace.events.track[rows]] == timeline.index]
    number = trace.events.step[rows].astype(np.int64)
    if len(rows) < len(markers.number) or not is_in(markers.number, number).all():
        return None
    own = is_in(number, markers.number)
    order = np.argsort(markers.number, kind="stable")
    marker = order[np.searchsorted(markers.number[order], number[own])]
    return _inside(trace, timeline.rows, rows[own], markers.start_ns[marker])


def _by_modules(trace: Trace, timeline: DeviceTimeline, markers: Markers) -> LaunchedWork | None:
    """The work inside each run of the costliest program, if it ran once for each marker."""
    rows = trace.rows(EventKind.DEVICE_MODULE)
    rows = rows[trace.tracks.device[trace.events.track[rows]] == timeline.index]
    if not len(rows):
        return None
    names, name = unique_inverse(trace.events.name[rows])
    costliest = int(np.bincount(name, weights=trace.events.duration_ns[rows]).argmax())
    runs = rows[name == costliest]
    start_ns = markers.start_ns
    if len(runs) != len(start_ns) or (trace.events.start_ns[runs] < start_ns).any():
        return None
    program = trace.text(int(names[costliest]))
    return _inside(trace, timeline.rows, runs, start_ns, by_order=program)


def _inside(
    trace: Trace, rows: Int32, spans: Int32, launched_ns: Int64, by_order: str = ""
) -> LaunchedWork:
    """The work that starts inside the n-th span was launched at the n-th time."""
    start_ns, end_ns = trace.events.start_ns[spans], trace.events.end_ns[spans]
    at_ns = trace.events.start_ns[rows]
    span = last_before(start_ns, at_ns)
    inside = (span >= 0) & (at_ns < end_ns[np.maximum(span, 0)])
    return LaunchedWork(rows, np.where(inside, launched_ns[span], UNKNOWN), by_order)


def _work_of_cpu_programs(trace: Trace) -> LaunchedWork:
    """The operations of XLA programs on the CPU.

    The n-th call of a function launched the n-th run of its program, if there are as many.
    """
    events, table = trace.events, trace.hlo_events
    order = np.argsort(events.start_ns[table.row], kind="stable")
    rows, op = table.row[order], table.op[order]
    launch = events.launched_by[rows]
    launched_ns = np.where(launch >= 0, events.start_ns[launch], UNKNOWN)
    if len(rows) == 0 or (launch >= 0).all():
        return LaunchedWork(rows, launched_ns)
    modules, module = unique_inverse(trace.hlo.module[op])
    names = [program_name(trace.text(string)) for string in modules.tolist()]
    matched = []
    for calls in calls_by_function(trace):
        program = program_of(calls.function)
        runs_ns = _runs_of(trace, calls)
        if runs_ns is None:
            continue
        is_own = np.array([name == program for name in names], dtype=bool)[module] & (launch < 0)
        run = last_before(runs_ns, events.start_ns[rows[is_own]])
        called_ns = events.start_ns[calls.rows]
        launched_ns[is_own] = np.where(run >= 0, called_ns[run], UNKNOWN)
        matched.append(program)
    return LaunchedWork(rows, launched_ns, matched[0] if matched else "")


def _runs_of(trace: Trace, calls: FunctionCalls) -> Int64 | None:
    """When the runs of a function's program start; None unless each follows its own call."""
    runs_ns = runs_of_function(trace, calls.function).start_ns
    called_ns = trace.events.start_ns[calls.rows]
    is_match = len(runs_ns) == len(called_ns) and bool((runs_ns >= called_ns).all())
    return runs_ns if is_match else None


def owner_by_time(start_ns: Int64, end_ns: Int64, at_ns: Int64) -> Int64:
    """The window that each time lies in; -1 for none.

    Windows are in order.
    """
    owner = last_before(start_ns, at_ns)
    if len(end_ns):
        owner[at_ns >= end_ns[owner]] = -1
    return owner
