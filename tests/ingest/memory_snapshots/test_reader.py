"""What a snapshot's columns hold, in each form that PyTorch has written."""

from __future__ import annotations

import gzip
import pickle
from typing import Any

import pytest

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.memory_snapshots import collector
from tb_perfadvisor.trace.memory_snapshot import Action, BlockState, MemorySnapshot
from tests.support.memory_snapshots import START_US, Snapshot, frames, read

MIB = 1 << 20
FORWARD = frames(("/home/me/project/model.py", 3, "forward"), ("/home/me/train.py", 9, "main"))


def snapshot_of(data: bytes) -> MemorySnapshot:
    snapshot = read(data).snapshot
    assert snapshot is not None
    return snapshot


def drawn() -> Snapshot:
    made = Snapshot(device=1)
    segment = made.segment(20 * MIB)
    made.annotate("Optimizer.step#AdamW.step", duration_us=5)
    made.allocate(segment, 3 * MIB, FORWARD).free(segment, 3 * MIB)
    made.allocate(segment, 2 * MIB, FORWARD).holds(segment, segment, 2 * MIB, FORWARD)
    return made.fail(64 * MIB, 8 * MIB, FORWARD)


@pytest.mark.parametrize("form", ["pickle", "gzip"])
def test_columns(form: str) -> None:
    made = drawn()
    data = made.pickled() if form == "pickle" else gzip.compress(made.pickled())
    snapshot = snapshot_of(data)
    events, blocks = snapshot.events, snapshot.blocks
    assert [Action(action).name for action in events.action.tolist()] == [
        *("SEGMENT_ALLOCATE", "ALLOCATE", "FREE", "FREE_COMPLETED", "ALLOCATE", "OUT_OF_MEMORY"),
    ]
    assert events.size_bytes.tolist() == [size * MIB for size in (20, 3, 3, 3, 2, 64)]
    assert events.at_ns.tolist() == [(START_US + number) * 1_000 for number in range(6)]
    assert events.driver_free_bytes.tolist() == [-1] * 5 + [8 * MIB]
    assert set(events.device.tolist()) == {1}
    assert snapshot.devices == (1,)
    # Two blocks fill the segment: 2 MiB in use, 18 free.
    assert blocks.size_bytes.tolist() == [2 * MIB, 18 * MIB]
    assert blocks.state.tolist() == [BlockState.ALLOCATED, BlockState.FREE]
    first = snapshot.stacks.of(int(events.stack[1]))
    assert [(frame.file, frame.line, frame.function) for frame in first] == [
        ("/home/me/project/model.py", 3, "forward"),
        ("/home/me/train.py", 9, "main"),
    ]
    assert snapshot.stacks.of(int(events.stack[2])) == ()
    ranges = snapshot.annotations
    assert ranges.names == ("Optimizer.step#AdamW.step",)
    assert (ranges.end_ns - ranges.start_ns).tolist() == [5_000]
    assert snapshot.expandable_segments is False


def test_a_list_of_segments_is_a_snapshot_without_history() -> None:
    trace = read(pickle.dumps(drawn().content()["segments"]))
    assert trace.snapshot is not None
    assert len(trace.snapshot.events) == 0
    assert trace.snapshot.blocks.size_bytes.tolist() == [2 * MIB, 18 * MIB]
    assert [note.id for note in trace.notes] == ["no-memory-history"]


def test_the_first_schema_has_histories_of_blocks_and_no_addresses_or_times() -> None:
    """PyTorch 2.0: the frames of an allocation are in the block's history."""
    content = {
        "segments": [
            {
                **{"device": 0, "address": 1 << 40, "total_size": 10 * MIB, "stream": 0},
                "blocks": [
                    {"size": 4 * MIB, "state": "inactive"},
                    {
                        **{"size": 6 * MIB, "requested_size": 5 * MIB},
                        "state": "active_allocated",
                        "history": [{"addr": 1, "real_size": 1, "frames": FORWARD}],
                    },
                ],
            }
        ],
        "device_traces": [[{"action": "snapshot", "addr": 0, "size": 5 * MIB, "stream": 0}]],
    }
    snapshot = snapshot_of(pickle.dumps(content))
    assert snapshot.blocks.address.tolist() == [1 << 40, (1 << 40) + 4 * MIB]
    assert snapshot.blocks.requested_bytes.tolist() == [4 * MIB, 5 * MIB]
    assert snapshot.stacks.of(int(snapshot.blocks.stack[1]))[0].function == "forward"
    assert snapshot.events.at_ns.tolist() == [-1]


@pytest.mark.parametrize(
    "content",
    [
        {"model": {"weight": [1, 2]}},
        {"segments": 3},
        {"segments": [{"device": 0}]},
        {"device_traces": [3]},
        {"device_traces": [["text"]]},
        "text",
        {"segments": [], "other": [{"action": "alloc", "size": 1, "addr": 1}]},
    ],
)
def test_other_pickles_are_named(content: Any) -> None:
    with pytest.raises(UnreadableProfileError, match="snapshot"):
        read(pickle.dumps(content))


def test_events_without_a_size_or_address_are_left_out_and_counted() -> None:
    content = drawn().content()
    content["device_traces"][1][1]["size"] = -5
    content["device_traces"][1][2]["addr"] = "0x7f"
    content["device_traces"][1][3]["size"] = 1 << 80
    trace = read(pickle.dumps(content))
    assert trace.snapshot is not None
    assert trace.snapshot.left_out == 3
    (note,) = trace.notes
    assert note.message.startswith("3 events or blocks of the memory snapshot")


def test_control_characters_of_names_are_escaped() -> None:
    made = Snapshot()
    made.allocate(1 << 40, 512, frames(("a\x1b[31m.py", 1, "f\u202e")))
    (frame,) = snapshot_of(made.pickled()).stacks.frames
    assert frame.file == r"a\x1b[31m.py"
    assert frame.function == r"f\u202e"


def test_more_events_than_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "MAX_EVENTS", 5)
    with pytest.raises(UnreadableProfileError, match="more than 5 events") as caught:
        read(drawn().pickled())
    assert "max_entries" in caught.value.hint


def test_addresses_of_intels_gpus_have_their_highest_bit_set() -> None:
    # 0xff00000000200000 and on: 100, 200 and 300 MiB are alive at the end, and 300 were freed.
    base = 0xFF00_0000_0020_0000
    entries = []
    for number, (size, is_freed) in enumerate([(100, 0), (200, 0), (300, 1), (300, 0)]):
        address = base + number * 400 * MIB
        entry = {"addr": address, "size": size * MIB, "stream": 0, "frames": []}
        entries.append({**entry, "action": "alloc", "time_us": 10 + number})
        if is_freed:
            entries.append({**entry, "action": "free_completed", "time_us": 20})
    data = pickle.dumps({"segments": [], "device_traces": [entries]})
    trace = read(data)
    assert trace.snapshot is not None
    events = trace.snapshot.events
    assert len(events.at_ns) == 5
    assert not any(note.id == "damaged-snapshot" for note in trace.notes)
    # The highest bit is left out, so that addresses fit into signed integers.
    assert events.address.tolist()[0] == 0x7F00_0000_0020_0000
