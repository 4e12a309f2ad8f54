from __future__ import annotations

from tb_perfadvisor.rules.compute.kernels import DominantOperators
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.trace import Trace
from tests.support.tool_results import generic_step, input_pipeline, read, tensorflow_stats


def summed(*operators: tuple[str, str, str, int, float, float]) -> Trace:
    step = generic_step(0, step=10.0, compute=10.0)
    return read(
        {
            "h.input_pipeline.pb": input_pipeline(step),
            "h.tensorflow_stats.pb": tensorflow_stats(*operators),
        }
    )


def test_operators_that_only_move_tensors_in_a_recorders_table() -> None:
    on_device, on_host = (
        find(
            DominantOperators,
            summed(
                ("Device", "MatMul", "a", 10, 85.0, 85.0),
                ("Device", "Cast", "b/Cast", 20, 15.0, 15.0),
                ("Host", "_Send", "c", 4, 300.0, 300.0),
                ("Host", "Cast", "d", 1, 20.0, 20.0),
                ("Host", "MatMul", "e", 1, 80.0, 80.0),
            ),
        )
        or ()
    )
    assert on_device.summary == (
        "Operators that move or convert tensors take 15.0 % of the time of all operators on the"
        " device (Cast 15.0 %)."
    )
    # 320 of 400 us; sending costs more than converting.
    assert on_host.summary.endswith(
        "take 80.0 % of the time of all operators on the host (_Send 75.0 %, Cast 5.0 %)."
    )
    assert "keep them on one" in on_host.remedies[0].text
    assert "Convert once" in on_device.remedies[0].text
    assert (on_host.saving, on_host.severity) == (None, "low")


def test_moving_less_than_the_limit_is_normal() -> None:
    operators = [("Device", name, name, 1, 23.0, 23.0) for name in ("A", "B", "C", "D")]
    assert find(DominantOperators, summed(*operators, ("Device", "Cast", "e", 1, 8.0, 8.0))) == ()
    assert find(DominantOperators, summed(*operators, ("Device", "Cast", "e", 1, 12.0, 12.0)))


def test_three_kinds_of_operators_in_a_recorders_table() -> None:
    slow, fixed = (
        summed(
            *(
                ("Device", name, name, 1, time, time)
                for name, time in zip("ABCD", times, strict=True)
            )
        )
        for times in ((31.0, 31.0, 31.0, 7.0), (25.0, 25.0, 25.0, 25.0))
    )
    (finding,) = check_rule(DominantOperators, slow=slow, fixed=fixed).findings
    assert finding.summary.startswith("Operators of three kinds take 93.0 % of the time")


def test_sums_without_a_table_of_operators() -> None:
    step = input_pipeline(generic_step(0, step=10.0, compute=10.0))
    assert find(DominantOperators, read({"h.input_pipeline.pb": step})) is None
