"""Origins of events, and host times that only a device explains, worked out one by one."""

from __future__ import annotations

from math import prod
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.signals.core.host_speed import outruns_hosts, starts_a_device
from tb_perfadvisor.signals.core.operators import launching_operator
from tb_perfadvisor.signals.core.origins import MODULE, NODE, find_origins
from tb_perfadvisor.testing import TraceBuilder
from tb_perfadvisor.trace import EventKind
from tests.support.night import examples

randoms = st.integers(0, 2**32).map(Random)
FRAME = "src/train.py(12): step"
LIBRARY = "torch/nn/modules/module.py(1751): _wrapped_call_impl"


@examples(30)
@given(randoms)
def test_modules_and_lines_of_events(random: Random) -> None:
    builder = TraceBuilder()
    operators: list[str] = []
    launches: list[tuple[int, str]] = []
    clock = [0]

    def add(thread: str, depth: int) -> None:
        """An event, with others inside."""
        begin = clock[0]
        clock[0] += 1
        inner = random.randint(0, 3) if depth < 5 else 0
        for _ in range(inner):
            add(thread, depth + 1)
        end = clock[0] = clock[0] + 1
        what = random.random()
        if what < 0.2:
            name = f"{MODULE}{random.choice(('encoder', 'head (Linear)'))}"
            kind = random.choice((EventKind.PYTHON, EventKind.ANNOTATION))
            builder.host(kind, name, begin, end, thread=thread)
        elif what < 0.35:
            name = random.choice((FRAME, "lib/loss.py(3): loss", LIBRARY))
            builder.host(EventKind.PYTHON, name, begin, end, thread=thread)
        elif what < 0.5 and thread == "autograd":
            forward = random.choice(operators) if operators and random.random() < 0.5 else ""
            builder.operator(
                f"{NODE}MmBackward0", begin, end, thread=thread, launches=False, forward=forward
            )
        elif what < 0.65 and thread == "autograd" and operators:
            builder.operator(
                "MmBackward0", begin, end, thread=thread, launches=False,
                forward=random.choice(operators),
            )  # fmt: skip
        elif what < 0.85:
            key = f"operator {begin}"
            columns = {"frame": "own.py:7 own"} if random.random() < 0.2 else {}
            builder.operator(
                "aten::mm", begin, end, thread=thread, launches=False, key=key, **columns
            )
            operators.append(key)
        else:
            key = f"launch {begin}"
            builder.launch(begin, end, thread=thread, key=key)
            launches.append((begin, key))

    for thread in ("main", "autograd"):
        for _ in range(3):
            add(thread, 0)
    for at, (_, key) in enumerate(launches):
        builder.kernel("k", 1_000 + 2 * at, 1_001 + 2 * at, launched_by=key)
    trace = builder.build()
    events = trace.events
    count = len(events)
    name = [trace.name(row) for row in range(count)]
    parent, forward = events.parent.tolist(), events.forward.tolist()
    found = find_origins(trace, around := launching_operator(trace))

    def outward(row: int) -> list[int]:
        rows = []
        while row >= 0:
            rows.append(row)
            row = parent[row]
        return rows

    is_scope = [
        events.kind[row] in (EventKind.PYTHON, EventKind.ANNOTATION)
        and name[row].startswith(MODULE)
        for row in range(count)
    ]
    linked = list(forward)
    for row in range(count):  # a node's own function tells what the node belongs to
        if forward[row] >= 0 and parent[row] >= 0 and name[parent[row]].startswith(NODE):
            linked[parent[row]] = forward[row]
    stack = {
        row: trace.strings[frame]
        for row, frame in zip(
            trace.operators.row.tolist(), trace.operators.frame.tolist(), strict=True
        )
        if frame >= 0
    }
    lines = {FRAME: "src/train.py:12 step", "lib/loss.py(3): loss": "lib/loss.py:3 loss"}

    def host_line(row: int) -> str | None:
        """The operator's own stack, else the innermost frame of the user's code."""
        operator = int(around[row])
        if operator in stack:
            return stack[operator]
        return next(
            (
                lines[name[at]]
                for at in outward(row)
                if events.kind[at] == EventKind.PYTHON and name[at] in lines
            ),
            None,
        )

    for row in range(count):
        host = int(events.launched_by[row]) if events.launched_by[row] >= 0 else row
        outside = outward(host)
        scope = next((at for at in outside if is_scope[at]), -1)
        node = next((at for at in outside if linked[at] >= 0 or name[at].startswith(NODE)), -1)
        if scope > node:  # what runs within a module inside of a node is that module's
            node = -1
        of_node = linked[node] if node >= 0 else -1
        origin = scope
        line = host_line(host)
        if node >= 0:
            inside = outward(of_node) if of_node >= 0 else []
            origin = next((at for at in inside if is_scope[at]), -1)
            line = host_line(of_node) if of_node >= 0 else None
        module = name[origin].removeprefix(MODULE) if origin >= 0 else None
        assert (int(found.node[row]), int(found.forward[row])) == (node, of_node)
        assert int(found.scope[row]) == origin
        assert found.module_of(row) == module
        assert found.line_of(row) == line


@examples(80)
@given(randoms)
def test_operators_that_no_host_runs_so_fast(random: Random) -> None:
    builder = TraceBuilder()
    large = impossible = 0
    for place in range(random.randint(0, 5)):
        factor = random.choice((0.99, 1.01))
        kind = random.choice(("aten::mm", "aten::add_", "aten::view"))
        dtype = random.choice(("float", "double", "int"))
        least = None
        if kind == "aten::mm":
            # 2 m k n operations at 1e15 per second; less than a microsecond's are not told.
            shapes = random.choice(([[1000, 1000], [1000, 499]], [[1000, 1000], [1000, 501]],
                                    [[4096, 4096], [4096, 4096]], [[4096, 4096]]))  # fmt: skip
            flop = 2 * prod(shapes[0]) * shapes[-1][-1]
            if len(shapes) == 2 and flop > 1e9:
                least = flop / 1e15 * 1e9
        else:
            # Read and written at 2e12 bytes per second; smaller than 256 MiB may be in a cache.
            elements = random.choice((2**25, 2**26 - 1, 2**26, 2**28))
            shapes = [[elements], [2, 2]]
            width = {"float": 4, "double": 8, "int": 4}[dtype]
            if kind == "aten::add_" and elements * width >= 2**28:
                least = 2 * elements * width / 2e12 * 1e9
        length = 50 if least is None else int(least * factor)
        begin = 10**7 * place
        builder.operator(
            kind, begin, begin + length, shapes=shapes, dtypes=[dtype] * len(shapes), launches=False
        )
        if least is not None:
            large += 1
            impossible += factor < 1
    is_traced = random.random() < 0.2
    if is_traced:
        builder.host(EventKind.PYTHON, "torch/_dynamo/x.py(1): f", 0, 1)
    expected = 2 * impossible > large and not is_traced
    assert outruns_hosts(builder.build()) == expected


@examples(40)
@given(randoms)
def test_the_start_of_a_device(random: Random) -> None:
    length = random.choice((99_999_999, 100_000_000))
    outer = random.choice(("aten::to", "aten::_to_copy", "aten::copy_", "aten::mm"))
    inner = random.choice(("aten::empty_strided", "aten::empty", "aten::zeros"))
    is_inside = random.random() < 0.8
    builder = TraceBuilder().operator(outer, 0, 2 * 10**8, launches=False)
    begin = 10 if is_inside else 3 * 10**8
    builder.operator(inner, begin, begin + length, launches=False)
    starts = length == 100_000_000 and outer != "aten::mm" and inner != "aten::zeros" and is_inside
    assert starts_a_device(builder.build()) == starts


def test_rows_of_an_empty_trace_have_no_origin() -> None:
    trace = TraceBuilder().build()
    found = find_origins(trace, launching_operator(trace))
    assert (found.names, found.lines) == ((), ())
    assert found.node.dtype == found.module.dtype == np.int32
