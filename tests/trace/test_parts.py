from __future__ import annotations

import numpy as np

from tb_perfadvisor.testing import TraceBuilder, ms
from tb_perfadvisor.trace import CopyDirection, EventKind, Trace
from tb_perfadvisor.trace.retimed import part_of


def two_threads() -> Trace:
    """Two threads, each of which launches a kernel on its own device."""
    builder = TraceBuilder().device("A", memory_bytes=1).device("B", memory_bytes=1)
    for number, thread in enumerate(("left", "right")):
        builder.annotation("outer", ms(number), ms(10 + number), thread=thread)
        builder.operator(
            "aten::mm", ms(1 + number), ms(2 + number), thread=thread, key=thread, shapes=[[2, 2]]
        )
        builder.kernel("gemm", ms(3), ms(4 + number), device=number, launched_by=thread)
        builder.copy(
            CopyDirection.HOST_TO_DEVICE, ms(5), ms(6), device=number, launched_by=thread,
            size_bytes=number,
        )  # fmt: skip
        builder.memory(ms(1), 100 + number, device=number, thread=thread)
    return builder.build()


def tracks_of(trace: Trace, label: str, device: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    labels = np.array([trace.text(index) for index in trace.tracks.label.tolist()])
    return (labels == label) | (trace.tracks.device == device)


def test_a_part_holds_all_that_belongs_to_its_tracks() -> None:
    whole = two_threads()
    part = part_of(whole, tracks_of(whole, "right", 1))
    # An annotation, an operator with its launch, a kernel and a copy.
    assert len(part.events) == 5
    assert len(part.tracks) == 2
    assert [device.name for device in part.devices] == ["B"]
    assert part.memory.bytes.tolist() == [101]
    assert part.copies.size_bytes.tolist() == [1]
    (operator,) = part.operators.row.tolist()
    assert part.name(operator) == "aten::mm"
    assert part.name(int(part.events.parent[operator])) == "outer"
    for row in (*part.kernels.row.tolist(), *part.copies.row.tolist()):
        launch = int(part.events.launched_by[row])
        assert part.events.kind[launch] == EventKind.LAUNCH
        assert int(part.events.parent[launch]) == operator


def test_links_out_of_the_part_are_gone() -> None:
    whole = two_threads()
    # The device of the one thread with the other thread.
    part = part_of(whole, tracks_of(whole, "left", 1))
    assert (part.events.launched_by == -1).all()


def test_everything_is_the_whole() -> None:
    whole = two_threads()
    part = part_of(whole, np.ones(len(whole.tracks), dtype=np.bool_))
    for column in ("start_ns", "kind", "name", "track", "parent", "launched_by", "forward"):
        before, after = getattr(whole.events, column), getattr(part.events, column)
        assert before.tolist() == after.tolist()
    assert part.memory.address.tolist() == whole.memory.address.tolist()
