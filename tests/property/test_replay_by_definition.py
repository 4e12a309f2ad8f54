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
from tb_perfadvisor.whatif import Remove, Shorten
from tb_perfadvisor.whatif.device_delays import device_delays
from tb_perfadvisor.whatif.graph import EdgeKind, Graph, NodeKind, build_graph, wait_edges
from tb_perfadvisor.whatif.program import NEVER, NotReplayable, Program, find_program
from tb_perfadvisor.whatif.replay import MAX_ROUNDS, replay, shrink
from tb_perfadvisor.whatif.threads import turn_taking
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


@examples(60)
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
