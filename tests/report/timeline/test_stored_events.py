import numpy as np
import pytest

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.report.timeline import stored_events
from tb_perfadvisor.report.timeline.stored_events import (
    collect_events,
    decode_events,
    encode_events,
    select_events,
)
from tb_perfadvisor.trace import Assembler, EventKind, Source, Trace, TrackKind
from tb_perfadvisor.trace.intervals import EMPTY


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


def test_a_range_has_overlapping_events_and_renumbered_tracks() -> None:
    found = select_events(collect_events(drawn(), worker=3), 100, 200, max_events=10)
    assert found["worker"] == 3
    assert found["tracks"] == [
        {"label": "main", "process": "", "kind": "host", "device": None},
        {"label": "stream 7", "process": "", "kind": "device", "device": 0},
    ]
    assert [(e["track"], e["start_ns"], e["duration_ns"], e["name"]) for e in found["events"]] == [
        (0, 0, 400, "call"),
        (1, 100, 80, "a<é>"),
        (0, 150, 10, "launch"),
    ]
    assert [e["kind"] for e in found["events"]] == ["annotation", "kernel", "launch"]
    assert found["truncated"] == 0
    assert found["left_out"] == 0


@pytest.mark.parametrize(
    ("from_ns", "to_ns", "names"),
    [(180, 300, ["call"]), (179, 300, ["call", "a<é>"]), (180, 301, ["call", "b"])],
)
def test_the_ends_of_a_range_are_exclusive(from_ns: int, to_ns: int, names: list[str]) -> None:
    found = select_events(collect_events(drawn(), worker=0), from_ns, to_ns, max_events=10)
    assert [event["name"] for event in found["events"]] == names


def test_truncation_takes_turns_among_tracks() -> None:
    # Three of five events stay: the longest of each track (call, a), then the longest of the
    # second turn. launch (10 ns) and b (10 ns) tie; the host's track comes first.
    found = select_events(collect_events(drawn(), worker=0), 0, 400, max_events=3)
    assert [event["name"] for event in found["events"]] == ["call", "launch", "a<é>"]
    assert found["truncated"] == 2


def test_the_longest_events_are_stored_and_the_rest_counted() -> None:
    stored = collect_events(drawn(), worker=0, max_events=2)
    assert [stored.names[i] for i in stored.name] == ["call", "a<é>"]
    assert stored.left_out == 3
    assert select_events(stored, 0, 400, max_events=10)["left_out"] == 3


def test_unused_names_are_not_stored() -> None:
    assert sorted(collect_events(drawn(), worker=0).names) == ["a<é>", "b", "call", "launch"]


def test_round_trip() -> None:
    stored = collect_events(drawn(), worker=1)
    again = decode_events(encode_events(stored))
    assert again.names == stored.names
    assert again.track_labels == ("main", "unused", "stream 7")
    assert (again.worker, again.trace_duration_ns, again.left_out) == (1, 400, 0)
    assert select_events(again, 0, 400, 10) == select_events(stored, 0, 400, 10)


def test_claims_of_a_finding_are_cut_to_the_range() -> None:
    first, second = np.array([[0, 50], [90, 120]]), np.array([[10, 400]])
    stored = decode_events(encode_events(collect_events(drawn(), 0, [first, EMPTY, second])))
    assert stored.claims_of(0).tolist() == first.tolist()
    assert select_events(stored, 40, 100, 10, finding=0)["claims"] == [[40, 50], [90, 100]]
    assert select_events(stored, 40, 100, 10, finding=1)["claims"] == []
    assert select_events(stored, 40, 100, 10, finding=2)["claims"] == [[40, 100]]
    assert select_events(stored, 40, 100, 10)["claims"] == []
    # The longest claims stay, in order of time.
    assert select_events(stored, 0, 100, 1, finding=0)["claims"] == [[0, 50]]


def test_claims_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_events, "MAX_CLAIMS", 2)
    claims = np.array([[0, 5], [10, 40], [50, 51], [60, 90]])
    stored = collect_events(drawn(), 0, [claims])
    assert stored.claims_of(0).tolist() == [[10, 40], [60, 90]]


def test_empty_trace() -> None:
    stored = collect_events(Assembler().finish(Source(path="x", format="test")), worker=0)
    found = select_events(decode_events(encode_events(stored)), 0, 10, 5)
    assert (found["tracks"], found["events"], found["truncated"]) == ([], [], 0)


@pytest.mark.parametrize("keep", [0, 10, 300])
def test_damaged_content_is_an_error(keep: int) -> None:
    content = encode_events(collect_events(drawn(), worker=0))[:keep]
    with pytest.raises(PerfAdvisorError, match="cannot be read"):
        decode_events(content)
