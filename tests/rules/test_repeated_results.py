from __future__ import annotations

from msgspec.structs import replace

from tb_perfadvisor.rules.compute.examined_results import RepeatedResults
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, ms
from tests.support.examined import observed, program


def test_saves_its_part_of_the_time() -> None:
    checked = check_rule(
        RepeatedResults,
        slow=program(observed("same in every step", 0.3)),
        fixed=program(step_ms=7),
        saves="3ms",
    )
    (finding,) = checked.findings
    assert "there already" in finding.summary


def test_just_below_and_just_above_the_limit() -> None:
    assert find(RepeatedResults, program(observed("same in every step", 0.049))) == ()
    assert find(RepeatedResults, program(observed("same in every step", 0.051)))


def test_names_what_a_step_computes_twice() -> None:
    (finding,) = find(RepeatedResults, program(observed("same twice", 0.2)))
    assert "gets the same inputs twice in a step" in finding.summary


def test_takes_no_more_than_what_was_recorded_of_the_operator() -> None:
    # A tenth of the recorded work is of the operator, which was two thirds of what was the same.
    found = replace(observed("same in every step", 0.3, 2 / 3), operator="aten::sin")
    trace = program(found)
    builder = TraceBuilder()
    for number in range(3):
        start = ms(10 * number)
        builder.step(number, start, start + ms(10))
        builder.operator("aten::sin", start, start + ms(1), launches=False)
        builder.operator("aten::cat", start + ms(1), start + ms(10), launches=False)
    (finding,) = find(RepeatedResults, replace(builder.build(), facts=trace.facts))
    assert finding.saving is not None
    assert finding.saving.expected_ns == 3 * ms(1) * 3 // 2


def test_says_how_to_keep_rows() -> None:
    (finding,) = find(RepeatedResults, program(observed("same rows", 0.5)))
    assert "for one more" in finding.summary
    (remedy,) = finding.remedies
    assert "KV cache" in remedy.text
    (other,) = find(RepeatedResults, program(observed("same twice", 0.5)))
    assert "KV cache" not in other.remedies[0].text
