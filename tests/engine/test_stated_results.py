"""What is said about results of TensorFlow's tools beside the events."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tb_perfadvisor.engine.stated_results import on_stated_results
from tb_perfadvisor.note import Note
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.trace import StatedResults, Trace

# Two steps of 10 ms, 4 of which are input.
EVENTS = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDOOOOOO|DDDDOOOOOO|
"""


def notes(*results: StatedResults, trace: Trace | None = None, text: str = EVENTS) -> list[Note]:
    drawn = trace or draw(text, framework="tensorflow")
    run = replace(run_of(drawn), stated=results)
    return on_stated_results(Signals(run))


def stated(**changes: Any) -> StatedResults:
    facts: dict[str, Any] = {
        "file": "h.overview_page.pb", "host": "", "steps": 2, "step_ns": 10e6,
        "input_share": 0.4, "share_of_16_bits": None,
    }  # fmt: skip
    return StatedResults(**{**facts, **changes})


def test_without_results_there_is_nothing_to_say() -> None:
    assert notes() == []


def test_results_that_agree() -> None:
    # 5 % of a step and 3 points of a share are allowed.
    (note,) = notes(stated(step_ns=10.4e6, input_share=0.425))
    assert (note.id, note.severity) == ("other-results", "info")
    assert note.message.endswith("agree with the events: 10.4 ms per step, 42.5 % of it waiting "
                                 "for input.")  # fmt: skip


def test_results_that_disagree_name_both_and_the_trusted_one() -> None:
    (note,) = notes(stated(step_ns=12e6, input_share=0.61))
    assert note.severity == "warning"
    assert "a step takes 12.0 ms (mean of 2), by the events 10.0 ms (mean of 2)" in note.message
    assert "waiting for input is 61.0 %, by the events 40.0 %" in note.message
    assert "The events are used, because they show what ran when" in note.message


def test_other_steps_explain_a_difference() -> None:
    (note,) = notes(stated(steps=9, step_ns=12e6))
    assert "The two cover different steps." in note.message


def test_a_file_that_lacks_events_is_not_trusted() -> None:
    cut = replace(
        draw(EVENTS, framework="tensorflow"), notes=(Note("event-limit", "warning", "Cut."),)
    )
    (note,) = notes(stated(input_share=0.8), trace=cut)
    assert "trust the results for the recording as a whole" in note.message


def test_events_without_steps() -> None:
    (note,) = notes(stated(steps=1), text="cell 1ms\nmain |DDDDOOOOOO|")
    assert "they have one step of 10.0 ms, the events show none" in note.message


def test_results_of_another_host_say_nothing_about_this_one() -> None:
    assert notes(stated(host="a"), stated(host="b")) == []


def test_compute_in_16_bits_is_compared_on_a_device() -> None:
    trace = draw("cell 1ms\nstep |..|..|\ngpu 7 |HH|HH|", framework="tensorflow")
    (note,) = notes(stated(step_ns=2e6, input_share=None, share_of_16_bits=0.3), trace=trace)
    assert "compute in 16 bits is 30.0 %, by the events 100.0 %" in note.message
