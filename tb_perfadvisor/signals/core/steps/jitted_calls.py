"""Calls of JAX's jitted functions, and the programs that they run.

JAX records a call of a jitted function `f` as `PjitFunction(f)`, twice, one inside the other. The
call runs the program `jit_f`. While `f` is traced, the jitted functions that it calls are recorded,
too, inside its call.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in, row_mask, unique_inverse
from tb_perfadvisor.trace.nesting import nearest
from tb_perfadvisor.trace.tables import Int32

_CALL = re.compile(r"^PjitFunction\((?P<function>.+)\)$")
_PROGRAM_ID = re.compile(r"\(\d+\)$")
DERIVATIVE = "transpose(jvp("
"""In the path of an operation that JAX's reverse mode made."""
_FEWEST_INSIDE = 10
"""Calls of a function in each step that make a loop; a few may be parts of a step."""
_NOT_IN_PROGRAM_NAMES = re.compile(r"[^\w.-]")

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

    Args:
        trace: The trace.
        fewest: The fewest calls.
        shortest_ns: The shortest median time from one call to the next, if the program calls
            several functions. Calls that return before their work is done may follow faster:
            then the time of the work counts.
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
