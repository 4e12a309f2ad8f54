"""Delays, threads and replays of programs that ran on a simulated device, by plain loops."""

from __future__ import annotations

from random import Random
from statistics import median

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, run_of
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.intervals import Intervals, union
from tb_perfadvisor.trace.retimed import with_events
from tb_perfadvisor.whatif import Remove, Shorten
from tb_perfadvisor.whatif.device_delays import device_delays
from tb_perfadvisor.whatif.graph import (
    EdgeKind,
    Graph,
    NodeKind,
    WaitEdges,
    build_graph,
    wait_edges,
)
from tb_perfadvisor.whatif.program import NEVER, NotReplayable, Program, find_program, turn_taking
from tb_perfadvisor.whatif.replay import MAX_ROUNDS, replay, shrink
from tests.support.cuda_executor import Backward, Item, Launch, Operation, Sync, Work, play
from tests.support.night import examples

randoms = st.integers(0, 2**32).map(Random)
SIGNAL_NS, ROUNDING_NS = 10_000, 1_000


def random_program(random: Random) -> tuple[Trace, Program]:
    """A few steps of launches, waits and host work, and what they consist of."""

    def operation() -> Operation:
        length = random.choice((1, 2, 5, 20, 50)) * 1_000
        stream, other = random.choice(((7, 9), (9, 7)))
        what = random.random()
        if what < 0.55:
            after = other if random.random() < 0.3 else None
            return Launch(stream, length, after_stream=after)
        if what < 0.8:
            return Work(length)
        return Sync(random.choice((None, 7, 9))) if what < 0.92 else Item(stream)

    steps = []
    for _ in range(random.randint(1, 3)):
        inner = tuple(operation() for _ in range(random.randint(1, 6)))
        if random.random() < 0.3:
            inner = (Backward(inner), operation())
        steps.append((*inner, Launch(7, 5_000)))
    trace = play(steps, 4).trace
    if random.random() < 0.6:  # only newer files record which stream a call waits for
        trace = with_events(trace, trace.events.kind != EventKind.DEVICE_SYNC)
    program = find_program(Signals(run_of(trace)))
    assert not isinstance(program, NotReplayable)
    return trace, program


@examples(40)
@given(randoms)
def test_delays_of_device_work(random: Random) -> None:
    trace, program = random_program(random)
    found = device_delays(trace, program)
    events, stream = trace.events, program.stream.tolist()
    start, end = events.start_ns[program.work].tolist(), events.end_ns[program.work].tolist()
    launched = events.start_ns[program.launch].tolist()
    tails = program.tail_ns.tolist()
    works = range(len(start))
    previous = [
        max((at for at in range(work) if stream[at] == stream[work]), default=-1) for work in works
    ]
    assert found.previous.tolist() == previous
    freed = [end[at] if at >= 0 else tails[stream[work]] for work, at in enumerate(previous)]
    latency = [start[work] - launched[work] for work in works]
    gap = [start[work] - freed[work] for work in works]
    alone = [work for work in works if max([*tails, *end[:work]]) <= launched[work]]
    shown = [work for work in works if freed[work] <= launched[work]]
    sample = alone or shown
    usual_latency = min(*latency, SIGNAL_NS)
    if sample:
        usual_latency = int(median(latency[work] for work in sample))
    queued = [
        gap[work]
        for work in works
        if launched[work] + usual_latency < freed[work]
        and sum(freed[work] <= at <= start[work] for at in end) <= (previous[work] >= 0)
    ]
    usual_gap = max(int(median(queued)), 0) if queued else 0
    assert found.gap_ns == usual_gap
    cross = {}
    launch_delay, stream_delay = [], []
    for work in works:
        is_for_launch = freed[work] <= launched[work] or (
            abs(latency[work] - usual_latency) < abs(gap[work] - usual_gap)
        )
        is_late = latency[work] > usual_latency if is_for_launch else gap[work] > usual_gap
        latest = max(launched[work], freed[work], start[work] - SIGNAL_NS)
        # What it seems to have waited for: the last work of another stream that was done by then.
        for number in range(len(tails)) if is_late else ():
            done = []
            for at in works:
                before = [other for other in works if other <= at and stream[other] == number]
                if stream[at] != number or number == stream[work]:
                    continue
                is_done = max(end[other] for other in before) <= start[work] + ROUNDING_NS
                if is_done and max(launched[other] for other in before) <= launched[work]:
                    done.append(at)
            if done and end[done[-1]] > latest:
                cross[work], latest = done[-1], end[done[-1]]
        is_shown = is_for_launch and work not in cross
        launch_delay.append(latency[work] if is_shown else min(usual_latency, latency[work]))
        is_usual = is_for_launch or work in cross
        stream_delay.append(min(usual_gap, gap[work]) if is_usual else gap[work])
    assert found.launch_delay_ns.tolist() == launch_delay
    assert found.stream_delay_ns.tolist() == stream_delay
    inferred = len(cross)
    edges = zip(found.cross_target.tolist(), found.cross_source.tolist(), strict=True)
    assert list(edges)[:inferred] == sorted(cross.items())
    signals = [start[work] - end[at] for work, at in sorted(cross.items())]
    assert found.cross_delay_ns.tolist()[:inferred] == signals
    # Then come the waits that calls state: they delay no more than a usual signal.
    usual_signal = int(median(signals)) if signals else 0
    stated = zip(
        found.cross_source.tolist(), found.cross_target.tolist(), found.cross_delay_ns.tolist(),
        strict=True,
    )  # fmt: skip
    for source, target, delay in list(stated)[inferred:]:
        assert stream[source] != stream[target]
        assert delay == min(start[target] - end[source], usual_signal)


@examples(40)
@given(randoms)
def test_what_calls_wait_for(random: Random) -> None:
    trace, program = random_program(random)
    found = wait_edges(trace, program)
    events, stream = trace.events, program.stream.tolist()
    finish = events.end_ns[program.work].tolist()
    launched = events.start_ns[program.launch].tolist()
    tails, waits = program.tail_ns.tolist(), program.waits.tolist()
    launches = program.launch.tolist()
    number_of = dict(zip(events.track[program.work].tolist(), stream, strict=True))
    edges: list[tuple[int, int, int]] = []  # wait, work, stream
    own: list[tuple[int, int, int]] = []
    for wait, row in enumerate(waits):
        begin = int(events.start_ns[row])
        end = min(int(events.end_ns[row]), program.end_ns)
        copied = [
            work
            for work, launch in enumerate(launches)
            if launch == row and finish[work] <= end + 2_000
        ]
        if copied:  # a blocking copy waits for its own work
            own.append((wait, copied[-1], stream[copied[-1]]))
            continue
        # The last work of each stream that was launched before the call, and when it ended.
        last = [
            max(
                (
                    work
                    for work in range(len(stream))
                    if stream[work] == number
                    and all(
                        launched[other] < begin
                        for other in range(work + 1)
                        if stream[other] == number
                    )
                ),
                default=-1,
            )
            for number in range(len(tails))
        ]
        ended = [finish[at] if at >= 0 else tails[number] for number, at in enumerate(last)]
        fits = [at <= end + 2_000 for at in ended]
        recorded = [
            number_of[int(events.track[sync])]
            for sync in trace.rows(EventKind.DEVICE_SYNC).tolist()
            if events.launched_by[sync] == row and int(events.track[sync]) in number_of
        ]
        if recorded and fits[recorded[-1]]:
            edges.append((wait, last[recorded[-1]], recorded[-1]))
            continue
        if trace.name(row).startswith("cudaDeviceSynchronize"):
            edges += [(wait, last[number], number) for number in range(len(tails)) if fits[number]]
            continue
        fitting = [ended[number] if fits[number] else NEVER - 1 for number in range(len(tails))]
        choice = fitting.index(max(fitting))
        if ended[choice] <= begin:  # it held nobody up: the stream that the thread used last
            line = program.line_of[events.track[row]]
            used = [
                (launched[work], work)
                for work in range(len(stream))
                if launched[work] < begin and program.line_of[events.track[launches[work]]] == line
            ]
            counts = [stream.count(number) for number in range(len(tails))]
            choice = stream[max(used)[1]] if used else counts.index(max(counts))
        if fits[choice]:
            edges.append((wait, last[choice], choice))
    columns = (found.wait.tolist(), found.work.tolist(), found.stream.tolist())
    assert sorted(zip(*columns, strict=True)) == sorted(edges + own)
    assert found.row.tolist() == waits
    finished = [
        finish[work] if work >= 0 else tails[number]
        for _, work, number in zip(*columns, strict=True)
    ]
    ends = [min(int(events.end_ns[row]), program.end_ns) for row in waits]
    returns = [
        max([end, *(at for of, at in zip(columns[0], finished, strict=True) if of == wait)])
        for wait, end in enumerate(ends)
    ]
    assert found.returns_ns.tolist() == returns
    assert_costs(trace, program, found, finished)


def assert_costs(trace: Trace, program: Program, found: WaitEdges, finished: list[int]) -> None:
    """What calls cost without a wait, and what follows the wait in them."""
    events, waits = trace.events, program.waits.tolist()
    begins = events.start_ns[program.waits].tolist()
    returns, edges = found.returns_ns.tolist(), found.wait.tolist()
    length = [end - begin for begin, end in zip(begins, returns, strict=True)]
    latest = [
        max((at for of, at in zip(edges, finished, strict=True) if of == wait), default=NEVER)
        for wait in range(len(waits))
    ]
    is_last = [at == latest[of] for of, at in zip(edges, finished, strict=True)]
    held = [last and at > begins[of] for of, at, last in zip(edges, finished, is_last, strict=True)]
    overhead = [returns[of] - at for of, at in zip(edges, finished, strict=True)]
    clear = [
        over
        for of, at, over, holds in zip(edges, finished, overhead, held, strict=True)
        if holds and at - begins[of] > over
    ]
    after = int(median(clear)) if clear else 0
    launching = {row for row in program.launch.tolist() if row not in waits}
    calls = [int(events.duration_ns[row]) for row in launching]
    launch_cost = int(median(calls)) if calls else after
    was_held = {of for of, holds in zip(edges, held, strict=True) if holds}
    idle = [
        length[wait]
        for wait, row in enumerate(waits)
        if wait not in was_held and row not in program.launch
    ]
    sync_cost = min(int(median(idle)) if idle else after, 10 * launch_cost)
    cost = [launch_cost if row in program.launch else sync_cost for row in waits]
    binding = [
        last and abs(over - after) <= abs(length[of] - cost[of])
        for of, over, last in zip(edges, overhead, is_last, strict=True)
    ]
    bound = {of for of, binds in zip(edges, binding, strict=True) if binds}
    assert found.cost_ns.tolist() == [
        min(cost[wait], length[wait]) if wait in bound else length[wait]
        for wait in range(len(waits))
    ]
    assert found.delay_ns.tolist() == [
        over if binds else min(after, over) for over, binds in zip(overhead, binding, strict=True)
    ]
    unexplained = [length[wait] - cost[wait] for wait in range(len(waits))]
    for of, over, last in zip(edges, overhead, is_last, strict=True):
        if last:
            unexplained[of] = min(unexplained[of], over - after)
    assert found.unexplained_ns == sum(max(at, 0) for at in unexplained)


@examples(40)
@given(randoms)
def test_threads_that_take_turns(random: Random) -> None:
    builder = TraceBuilder()
    active: dict[str, set[int]] = {}
    for thread in ("a", "b", "c"):
        active[thread] = set()
        at = random.choice((0, 100))
        builder.annotation("named", 0, 400, thread=thread)  # says nothing of what runs
        for _ in range(random.randint(0, 4)):
            at += random.choice((0, 5, 60))
            end = at + random.choice((1, 5, 10, 100))
            builder.synchronize(at, end, thread=thread)
            active[thread].update(range(max(at, 20), min(end, 300)))
            at = end
    trace = builder.build()
    label = [trace.strings[name] for name in trace.tracks.label.tolist()]
    names = random.sample(["a", "b", "c"], 3)
    tracks = [label.index(name) for name in names]
    lines: list[list[str]] = []
    left = names
    while left:
        line, busy, others = [left[0]], set(active[left[0]]), []
        for name in left[1:]:
            overlap = len(busy & active[name])
            if 20 * overlap <= min(len(busy), len(active[name])):
                line.append(name)
                busy |= active[name]
            else:
                others.append(name)
        lines.append(line)
        left = others
    found = turn_taking(trace, tracks, 20, 300)
    assert [[label[track] for track in line] for line in found] == lines


def replayed(graph: Graph, delay: list[int], duration: list[int], kept: list[bool]) -> int:
    """How long a window takes: longest paths, round by round, over all edges."""
    chains = len(graph.tail_ns)
    tail = graph.tail_ns.tolist()
    critical = {at for at in set(graph.chain.tolist()) if at == 0 or at >= graph.lines}
    advances = 0
    for _ in range(1 if graph.is_one_run else MAX_ROUNDS):
        at = [NEVER] * len(graph) + tail
        edges = zip(graph.source.tolist(), graph.target.tolist(), delay, kept, strict=True)
        for source, target, edge_ns, is_kept in edges:
            if is_kept:
                at[target] = max(at[target], at[source] + edge_ns + duration[target])
        last = list(tail)
        for node, chain in enumerate(graph.chain.tolist()):
            last[chain] = at[node]
        if graph.is_one_run:
            return max(last[chain] for chain in critical) - int(graph.tail_ns[0])
        advances = max(last[chain] - tail[chain] for chain in critical)
        tail = last
    assert len(tail) == chains
    return advances


def random_stretches(random: Random, trace: Trace) -> Intervals:
    end_ns = int(trace.events.end_ns.max())
    bounds = [random.randrange(end_ns) for _ in range(3)]
    lengths = [random.choice((1_000, 7_000, 40_000)) for _ in bounds]
    starts = np.array(bounds, dtype=np.int64)
    return union(starts, starts + np.array(lengths))


def shared_ns(begin: int, end: int, intervals: Intervals) -> int:
    return sum(max(min(end, to) - max(begin, since), 0) for since, to in intervals.tolist())


@examples(30)
@given(randoms)
def test_replays_are_longest_paths(random: Random) -> None:
    trace, program = random_program(random)
    graph = build_graph(trace, program, wait_edges(trace, program))
    targets, kinds = graph.target.tolist(), graph.edge_kind.tolist()
    delay, duration = graph.delay_ns.tolist(), graph.duration_ns.tolist()
    kept = [True] * len(targets)
    assert targets == sorted(targets)
    assert replay(graph) == replayed(graph, delay, duration, kept)

    rows = trace.rows(EventKind.KERNEL)
    chosen = rows[[random.random() < 0.5 for _ in rows]]
    shorter = trace.events.duration_ns[chosen] // random.choice((2, 4))
    new = dict(zip(chosen.tolist(), shorter.tolist(), strict=True))
    faster = [
        min(length, new.get(row, length)) if kind == NodeKind.WORK else length
        for length, row, kind in zip(duration, graph.row.tolist(), graph.kind.tolist(), strict=True)
    ]
    assert replay(graph, [Shorten(chosen, shorter)]) == replayed(graph, delay, faster, kept)

    removed = random_stretches(random, trace)
    less, spans = list(delay), graph.spans
    for edge, begin, end in zip(
        spans.edge.tolist(), spans.from_ns.tolist(), spans.to_ns.tolist(), strict=True
    ):
        if kinds[edge] == EdgeKind.HOST and graph.chain[targets[edge]] == 0:
            less[edge] -= shared_ns(begin, end, removed)
    assert replay(graph, [Remove(removed)]) == replayed(graph, less, duration, kept)
    both = [Remove(removed), Shorten(chosen, shorter)]
    assert replay(graph, both) == replayed(graph, less, faster, kept)


def test_shrinking_keeps_the_beginning_of_each_stretch() -> None:
    starts, ends = np.array([0, 100, 200]), np.array([50, 110, 211])
    assert shrink(starts, ends, 10).intervals.tolist() == [[10, 50], [210, 211]]
