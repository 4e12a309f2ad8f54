from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.idle import annotated_idle
from tb_perfadvisor.testing import TraceBuilder, draw, host, ms, run_of
from tb_perfadvisor.testing.builder import Builder
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.intervals import single

LEGEND = {
    letter: host(name, EventKind.ANNOTATION)
    for letter, name in {
        "f": "forward",
        "l": "layer",
        "w": "whole step",
        "s": "Optimizer.step#Adam.step",
        "t": "## optimizer ##",
        "P": "PyTorch Profiler (0)",
    }.items()
}


def ms_by_name(trace: Trace, start: float = 0, end: float = 1e9) -> dict[str, float]:
    """Milliseconds of idle by annotation; the empty name for none."""
    signals = Signals(run_of(trace))
    found = annotated_idle(signals).by_name(single(ms(start), ms(end)))
    return {trace.text(name): total / 1e6 for name, total in found}


def named(text: str, **attributes: object) -> dict[str, float]:
    return ms_by_name(draw(f"cell 1ms\n{text}", legend=LEGEND, **attributes))  # type: ignore[arg-type]


def test_the_innermost_annotation_names_idle_time() -> None:
    # Idle from 2 to 10: 2 ms in `forward` alone, 3 in `layer`, 2 in `forward`, 1 outside.
    assert named(
        """
        step  |............|
        main  |L.fffffff.L.|
        main  |....lll.....|
        gpu 7 |KK........KK|
        """
    ) == {"forward": 4.0, "layer": 3.0, "": 1.0}


def test_annotations_of_the_same_name_add_up() -> None:
    assert named(
        """
        step  |..........|
        main  |Lf.ff.f.L.|
        gpu 7 |K.......KK|
        """
    ) == {"forward": 4.0, "": 3.0}


def test_neighbors_and_equal_ends() -> None:
    # `layer` ends with `forward`, and `optimizer` begins where both end.
    assert named(
        """
        step  |..........|
        main  |LfffftttL.|
        main  |...ll.....|
        gpu 7 |K.......KK|
        """
    ) == {"forward": 2.0, "layer": 2.0, "## optimizer ##": 3.0}


def test_the_launching_thread_comes_before_that_of_the_steps() -> None:
    # `autograd` launches the work at 8; where it has no annotation, that of `main` counts.
    assert named(
        """
        step     |..........|
        main     |Lffffffff.|
        autograd |..lll...L.|
        gpu 7    |K.......KK|
        """
    ) == {"forward": 4.0, "layer": 3.0}


def test_the_users_annotations_come_before_those_of_pytorch() -> None:
    # The optimizer annotates itself within the user's annotation, and once outside.
    assert named(
        """
        step  |..........|
        main  |LtttttssL.|
        main  |..sss.....|
        gpu 7 |K.......KK|
        """
    ) == {"## optimizer ##": 5.0, "Optimizer.step#Adam.step": 2.0}


@pytest.mark.parametrize("letter", ["w", "P"])
def test_annotations_that_say_nothing(letter: str) -> None:
    # One spans 9 of the 10 ms of the step; the other is the profiler's own.
    line = "w" * 9 + "." if letter == "w" else ".PPPPPP..."
    assert named(
        f"""
        step  |..........|
        main  |{line}|
        main  |L.......L.|
        gpu 7 |K.......KK|
        """
    ) == {"": 7.0}


def test_only_idle_time_within_the_intervals_counts() -> None:
    trace = draw(
        """
        cell 1ms
        step  |..........|
        main  |LfffffffL.|
        gpu 7 |K.......KK|
        """,
        legend=LEGEND,
    )
    assert ms_by_name(trace, 3, 5) == {"forward": 2.0}
    assert ms_by_name(trace, 0, 1) == {}


def test_idle_time_on_the_cpu_is_named() -> None:
    assert named(
        """
        step  |..........|
        main  |OO.fff..OO|
        """
    ) == {"forward": 3.0, "": 3.0}


def in_jax(builder: Builder) -> Builder:
    """A device that is busy for the first and the last of ten milliseconds."""
    builder.step(0, 0, ms(10))
    for number, begin in enumerate((0, 9)):
        builder.launch(ms(begin), ms(begin) + 1000, key=f"{number}")
        builder.kernel("fusion", ms(begin), ms(begin + 1), launched_by=f"{number}")
    return builder


def test_annotations_around_jitted_functions_in_jax() -> None:
    builder = in_jax(TraceBuilder("jax"))
    builder.annotation("load", ms(1), ms(3))
    builder.annotation("evaluate", ms(4), ms(8))
    builder.annotation("PjitFunction(step)", ms(5), ms(7))
    builder.annotation("ParseArguments", ms(5), ms(6))
    # `load` calls no program, so it could as well be the runtime's.
    assert ms_by_name(builder.build()) == {"evaluate": 4.0, "": 4.0}


def test_pieces_are_disjoint_and_cover_the_idle_time() -> None:
    trace = draw(
        """
        cell 1ms
        step  |..........|..........|
        main  |LffttL..L.|L.ffffttL.|
        main  |..l.......|...ll.....|
        gpu 7 |K....K..KK|K........K|
        """,
        legend=LEGEND,
    )
    signals = Signals(run_of(trace))
    pieces, gaps = annotated_idle(signals), signals.attribution.idle
    assert (pieces.start_ns[1:] >= pieces.end_ns[:-1]).all()
    for gap in range(len(gaps.start_ns)):
        of_gap = pieces.gap == gap
        assert pieces.start_ns[of_gap][0] == gaps.start_ns[gap]
        assert pieces.end_ns[of_gap][-1] == gaps.end_ns[gap]
        assert (pieces.start_ns[of_gap][1:] == pieces.end_ns[of_gap][:-1]).all()
