from __future__ import annotations

import pytest

from tb_perfadvisor.testing import DrawingError, draw, kernel
from tb_perfadvisor.trace import BUSY_KINDS, EventKind, KernelFamily, Precision, Trace, TrackKind

SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|
"""
MS = 1_000_000


def spans(trace: Trace, *kinds: EventKind) -> list[tuple[int, int]]:
    """(start, end) in milliseconds."""
    rows = trace.rows(*kinds)
    events = trace.events
    return [(int(events.start_ns[r]) // MS, int(events.end_ns[r]) // MS) for r in rows]


def test_the_drawing_of_the_style_guide() -> None:
    trace = draw(SLOW, rank=3)
    assert spans(trace, EventKind.STEP) == [(0, 10), (10, 20)]
    assert spans(trace, EventKind.INPUT_WAIT) == [(0, 4), (10, 14)]
    assert spans(trace, EventKind.OPERATOR) == [(4, 6), (14, 16)]
    assert spans(trace, EventKind.KERNEL) == [(5, 10), (15, 20)]
    assert trace.events.step[trace.rows(EventKind.STEP)].tolist() == [0, 1]
    assert trace.source.rank == 3
    assert trace.source.framework == "pytorch"


def test_a_kernel_is_launched_from_inside_the_latest_operator_before_it() -> None:
    trace = draw(SLOW)
    first, second = trace.rows(EventKind.KERNEL)
    for row, start_ms in ((first, 4), (second, 14)):
        launch = trace.events.launched_by[row]
        assert trace.events.kind[launch] == EventKind.LAUNCH
        assert trace.events.start_ns[launch] == start_ms * MS
        assert trace.events.duration_ns[launch] == MS // 2  # a quarter of two cells
        assert trace.name(trace.events.parent[launch]) == "aten::mm"


def test_operators_that_nothing_follows_launch_nothing() -> None:
    trace = draw("cell 1ms\nmain |oo.o.|\n")
    assert trace.rows(EventKind.LAUNCH).tolist() == []
    assert len(trace.rows(*BUSY_KINDS)) == 0


def test_a_bare_launch_stays() -> None:
    trace = draw("cell 1ms\nmain |L....|\n")
    assert spans(trace, EventKind.LAUNCH) == [(0, 1)]


def test_launches_can_be_overridden() -> None:
    text = "cell 1ms\nmain  |o.o...|\ngpu 7 |...K.K|\n"
    latest = draw(text)
    kernels = latest.rows(EventKind.KERNEL)
    starts = latest.events.start_ns[latest.events.launched_by[kernels]]
    assert (starts // MS).tolist() == [2, 2]
    chosen = draw(text, links={("gpu 7", 0): ("main", 0)})
    kernels = chosen.rows(EventKind.KERNEL)
    starts = chosen.events.start_ns[chosen.events.launched_by[kernels]]
    assert (starts // MS).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ("KKKK", [(0, 4)]),
        ("KK'K", [(0, 2), (2, 4)]),
        ("K'''", [(0, 1), (1, 2), (2, 3), (3, 4)]),
        ("KHHK", [(0, 1), (1, 3), (3, 4)]),
        ("KK|KK", [(0, 2), (2, 4)]),
        ("KK|--", [(0, 4)]),
        ("KK|-K", [(0, 4)]),
        ("K.|.K", [(0, 1), (3, 4)]),
    ],
)
def test_which_cells_are_one_event(cells: str, expected: list[tuple[int, int]]) -> None:
    # The step marker keeps time 0 where the drawing begins.
    blank = "".join("|" if cell == "|" else "." for cell in cells)
    trace = draw(f"cell 1ms\nstep |{blank}|\ngpu 7 |{cells}|\n")
    assert spans(trace, EventKind.KERNEL) == expected


def test_lanes_of_devices() -> None:
    trace = draw(
        """
        cell 10us
        gpu 7    |K...|
        gpu1 20  |.NN.|
        tpu 2    |...X|
        tpu 2 modules |MMMM|
        sync     |ss..|
        """
    )
    tracks = trace.tracks
    found = {
        trace.name(row)[:12]: (
            int(tracks.kind[track]),
            int(tracks.device[track]),
            int(tracks.thread[track]),
        )
        for row, track in enumerate(trace.events.track)
    }
    stream, line = int(TrackKind.DEVICE_STREAM), int(TrackKind.DEVICE_LINE)
    assert found == {
        "ampere_sgemm": (stream, 0, 7),
        "ncclKernel_A": (stream, 1, 20),
        "fusion.1": (stream, 2, 0),
        "jit_step(121": (line, 2, 1),
        "Context Sync": (stream, 0, -1),
    }


def test_a_lane_that_appears_twice_nests() -> None:
    trace = draw("cell 1ms\nmain |zzzz|\nmain |.oo.|\n")
    row = trace.rows(EventKind.OPERATOR)[0]
    assert trace.name(trace.events.parent[row]) == "Optimizer.step#SGD.step"


def test_a_legend_gives_letters_other_meanings() -> None:
    other = kernel("gemm_fp8", family=KernelFamily.MATMUL, precision=Precision.BITS_8, registers=40)
    trace = draw("cell 1ms\ngpu 7 |KK.K|\n", legend={"K": other})
    assert {trace.name(row) for row in trace.rows(EventKind.KERNEL)} == {"gemm_fp8"}
    assert trace.kernels.precision.tolist() == [Precision.BITS_8] * 2
    assert trace.kernels.registers.tolist() == [40, 40]


def test_steps_take_their_number_from_the_drawing() -> None:
    trace = draw("cell 1ms\nstep |7...|....|20..|\nmain |....|....|....|\n")
    steps = trace.rows(EventKind.STEP)
    assert trace.events.step[steps].tolist() == [7, 8, 20]
    assert [trace.name(row) for row in steps] == [
        "ProfilerStep#7", "ProfilerStep#8", "ProfilerStep#20",
    ]  # fmt: skip


def test_scale_multiplies_every_time() -> None:
    once, twice = draw(SLOW), draw(SLOW, scale=2)
    assert (once.events.start_ns * 2).tolist() == twice.events.start_ns.tolist()
    assert (once.events.duration_ns * 2).tolist() == twice.events.duration_ns.tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("main |..|", "begins with the length of a cell"),
        ("cell 1ms", "at least one lane"),
        ("cell 1ms\nmain ..", "not a lane"),
        ("cell 1ms\nmain |..|\ngpu 7 |...|", "'gpu 7' has 3 characters, lane 'main' has 2"),
        ("cell 1ms\nmain |.|.|\ngpu 7 |..||", "'gpu 7', column 2: '.' where lane 'main' has '|'"),
        ("cell 1ms\ngpu 7 |..K?|", r"lane 'gpu 7': no letter '\?' \(cell 4\); it knows H K"),
        ("cell 1ms\ngpu 7 |.-..|", "column 2: '-' follows no event"),
        ("cell 1ms\ngpu 7 |K|'.|", 'column 3: "\'" follows no event'),
        ("cell 1ms\nstep |..x.|", "neither a number nor dots"),
        ("cell 1ms\ngpu 0 lines |..|", "lines are modules, steps"),
    ],
)
def test_a_drawing_that_means_nothing_says_where(text: str, message: str) -> None:
    with pytest.raises(DrawingError, match=message):
        draw(text)


def test_links_to_nothing_are_refused() -> None:
    with pytest.raises(DrawingError, match="links name an event that is not drawn"):
        draw("cell 1ms\ngpu 7 |K|\n", links={("gpu 7", 0): ("main", 0)})
