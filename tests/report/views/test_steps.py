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
