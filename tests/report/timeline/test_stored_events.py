"""What is collected of a trace, and stored."""

import numpy as np
import pytest

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.report.timeline import collect_events as collecting
from tb_perfadvisor.report.timeline.collect_events import collect_events
from tb_perfadvisor.report.timeline.window import (
    TimelineEvents,
    decode_events,
    encode_events,
)
from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.signals.ranks.ranks import ranks_of
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.testing.builder import ms
from tb_perfadvisor.trace import Assembler, EventKind, Source, Trace, TrackKind
from tb_perfadvisor.trace.intervals import EMPTY, total_ns


def drawn() -> Trace:
    """A host thread with a call around two launches, a stream with two kernels.

    ns     0    100  200  300  400
    main   |call 0..400             |   launch 50..60, launch 150..160
    gpu 0  kernel a 100..180, kernel b 300..310
    """
    assembler = Assembler()
    main = assembler.add_track(TrackKind.HOST_THREAD, label="main")
    unused = assembler.add_track(TrackKind.HOST_THREAD, thread=9, label="unused")
    stream = assembler.add_track(TrackKind.DEVICE_STREAM, device=0, label="stream 7")
    assert (main, unused, stream) == (0, 1, 2)
    names = assembler.intern_all(["never used", "call", "launch", "a<é>", "b"])
    assembler.add_events(
        [0, 50, 150, 100, 300],
        [400, 10, 10, 80, 10],
        kind=[
            EventKind.ANNOTATION,
            EventKind.LAUNCH,
            EventKind.LAUNCH,
            EventKind.KERNEL,
            EventKind.KERNEL,
        ],
        name=[names[1], names[2], names[2], names[3], names[4]],
        track=[main, main, main, stream, stream],
    )
    return assembler.finish(Source(path="x.json", format="test"))


def signals_of(trace: Trace) -> Signals:
    return Signals(run_of(trace))


def rows_of(stored: TimelineEvents) -> list[tuple[int, int, str]]:
    names = (stored.texts[name] for name in stored.name)
    return list(zip(stored.row.tolist(), stored.start_ns.tolist(), names, strict=True))


def test_events_are_stored_by_row_and_start_and_tracks_without_events_are_not() -> None:
    stored = collect_events(signals_of(drawn()))
    assert rows_of(stored) == [
        (0, 0, "call"),
        (1, 50, "launch"),
        (1, 150, "launch"),
        (2, 100, "a<é>"),
        (2, 300, "b"),
    ]
    assert stored.track_label == ("main", "stream 7")
    assert stored.track_first_row.tolist() == [0, 2, 3]
    assert stored.track.tolist() == [0, 0, 0, 1, 1]
    assert stored.track_is_device.tolist() == [False, True]
    assert stored.track_device.tolist() == [-1, 0]
    assert (stored.whole_ns, stored.left_out) == (400, 0)


def test_the_longest_events_are_stored_and_the_rest_counted() -> None:
    stored = collect_events(signals_of(drawn()), max_events=2)
    assert rows_of(stored) == [(0, 0, "call"), (1, 100, "a<é>")]
    assert stored.left_out == 3
    assert stored.track_first_row.tolist() == [0, 1, 2]


def test_unused_names_are_not_stored() -> None:
    assert sorted(collect_events(signals_of(drawn())).texts) == ["a<é>", "b", "call", "launch"]


def test_causes_fill_the_window_and_steps_are_there() -> None:
    signals = signals_of(
        draw("""
            cell 1ms
            step   |..........|..........|
            main   |DDDDoo....|DDDDoo....|
            gpu 7  |.....KKKKK|.....KKKKK|
        """)
    )
    stored = collect_events(signals)
    by_cause = {
        cause: total_ns(stored.intervals_of(index))
        for index, cause in enumerate(stored.causes)
        if len(stored.intervals_of(index))
    }
    assert sum(by_cause.values()) == stored.end_ns_of_window - stored.start_ns_of_window == ms(20)
    # In each step, the device waits for four milliseconds of fetching.
    assert by_cause[Cause.INPUT.value] == ms(8)
    assert stored.step_start_ns.tolist() == signals.steps.start_ns.tolist()


def test_other_ranks_follow_on_the_clock_of_the_reference() -> None:
    step = """
        cell 1ms
        step   |....|....|
        main   |oooo|oooo|
    """
    first = draw(step)
    second = draw(step)
    run = run_of(first, second)
    signals = Signals(run)
    stored = collect_events(signals)
    assert sorted(stored.track_worker.tolist()) == [0, 1]
    begin_ns = ranks_of(signals).clocks.begin_ns
    assert stored.worker_shift_ns.tolist() == (begin_ns - begin_ns[0]).tolist()
    assert len(stored.start_ns) == len(first.events) + len(second.events)
    assert stored.ranks_left_out == 0


def test_ranks_with_too_many_events_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = draw("""
        cell 1ms
        step   |....|....|
        main   |oooo|oooo|
    """)
    monkeypatch.setattr(collecting, "MAX_EVENTS_OF_OTHERS", len(trace.events) - 1)
    stored = collect_events(Signals(run_of(trace, trace)))
    assert set(stored.track_worker.tolist()) == {0}
    assert stored.ranks_left_out == 1


def test_round_trip() -> None:
    stored = collect_events(signals_of(drawn()))
    again = decode_events(encode_events(stored))
    for name in TimelineEvents.__struct_fields__:
        assert np.array_equal(getattr(again, name), getattr(stored, name)), name


def test_claims_of_findings() -> None:
    first, second = np.array([[0, 50], [90, 120]]), np.array([[10, 400]])
    claims = [first, EMPTY, second]
    stored = decode_events(encode_events(collect_events(signals_of(drawn()), claims)))
    assert [stored.claims_of(finding).tolist() for finding in range(4)] == [
        first.tolist(),
        [],
        second.tolist(),
        [],
    ]


def test_claims_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "MAX_CLAIMS", 2)
    claims = np.array([[0, 5], [10, 40], [50, 51], [60, 90]])
    stored = collect_events(signals_of(drawn()), [claims])
    assert stored.claims_of(0).tolist() == [[10, 40], [60, 90]]


def test_stretches_of_causes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = collect_events(signals_of(drawn()))
    length = whole.cause_end_ns - whole.cause_start_ns
    assert len(length) > 2
    monkeypatch.setattr(collecting, "MAX_STRETCHES", 2)
    stored = collect_events(signals_of(drawn()))
    assert sorted((stored.cause_end_ns - stored.cause_start_ns).tolist()) == sorted(length)[-2:]


def test_empty_trace() -> None:
    trace = Assembler().finish(Source(path="x", format="test"))
    stored = decode_events(encode_events(collect_events(signals_of(trace))))
    assert (stored.start_ns.size, stored.track_label, stored.whole_ns) == (0, (), 0)


@pytest.mark.parametrize("keep", [0, 10, 300])
def test_damaged_content_is_an_error(keep: int) -> None:
    content = encode_events(collect_events(signals_of(drawn())))[:keep]
    with pytest.raises(PerfAdvisorError, match="cannot be read"):
        decode_events(content)
