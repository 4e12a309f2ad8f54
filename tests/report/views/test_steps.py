"""The steps view: what grew in steps that stand out."""

from __future__ import annotations

from tb_perfadvisor.report.views.steps import SlowStep, make_steps_view
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import draw, ms, run_of

EVEN = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|
"""


def test_the_part_that_grew_in_a_slow_step() -> None:
    usual, slow = "oDDDoKKKKK", "oDDDDDDDDDDDDDDDDDDDDDDDoKKKKK"
    steps = [usual, usual, usual, usual, slow, usual]
    main = "|".join("".join("." if cell == "K" else cell for cell in step) for step in steps)
    gpu = "|".join("".join(cell if cell == "K" else "." for cell in step) for step in steps)
    bounds = "|".join("." * len(step) for step in steps)
    drawing = f"cell 1ms\nstep |{bounds}|\nmain |{main}|\ngpu 7 |{gpu}|"
    view = make_steps_view(Signals(run_of(draw(drawing))))
    # 20 ms more than the median of 10 ms, all of it in the fetch.
    assert view.duration_ns == [ms(10), ms(10), ms(10), ms(10), ms(30), ms(10)]
    assert view.slow == [
        SlowStep(place=4, kind="outlier", part="Waiting for input", excess_ns=ms(20))
    ]


def test_even_steps_are_not_called_slow() -> None:
    assert make_steps_view(Signals(run_of(draw(EVEN)))).slow == []


def test_each_cause_names_its_longest_intervals() -> None:
    view = make_steps_view(Signals(run_of(draw(EVEN))))
    assert view.start_ns == [0, ms(10)]
    # Fetches in the first 4 ms of both steps.
    assert view.longest[view.causes.index("input")] == [(0, ms(4)), (ms(10), ms(14))]


def test_only_the_longest_intervals_are_kept_in_order_of_time() -> None:
    # 24 fetches of 1 to 24 ms, the longest first.
    lengths = range(24, 0, -1)
    main = "".join("D" * length + "o" for length in lengths)
    gpu = "".join("." * length + "K" for length in lengths)
    drawing = f"cell 1ms\nstep |{'.' * len(main)}|\nmain |{main}|\ngpu 7 |{gpu}|"
    view = make_steps_view(Signals(run_of(draw(drawing))))
    intervals = view.longest[view.causes.index("input")]
    assert [end - start for start, end in intervals] == [ms(length) for length in lengths[:20]]
