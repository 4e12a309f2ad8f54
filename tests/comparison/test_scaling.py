"""Scaling efficiency: the same program on another number of devices."""

from __future__ import annotations

from typing import Any

import pytest

from tb_perfadvisor.comparison.compare import compare_facts
from tb_perfadvisor.comparison.run_facts import RunFacts, ShapeUse
from tb_perfadvisor.contract.model import ComparedTarget
from tb_perfadvisor.report.formats.comparison.wording import run_columns
from tb_perfadvisor.testing import ms
from tests.support.comparison_facts import facts, setup

LINEAR = [ShapeUse(name="aten::linear", shapes="[[32, 512], [512, 512]]", total_ns=100)]
HALF = [ShapeUse(name="aten::linear", shapes="[[16, 512], [512, 512]]", total_ns=100)]


def run(ranks: int, compute_ms: int, communication_ms: int = 0, **fields: Any) -> RunFacts:
    """Three equal steps of a rank: compute, then communication."""
    step_ms = compute_ms + communication_ms
    causes = {"compute-32": 3 * ms(compute_ms), "communication": 3 * ms(communication_ms)}
    known = {"world_size": ranks, "batch": 32, **fields.pop("setup", {})}
    return facts(*[ms(step_ms)] * 3, causes=causes, setup=setup(**known), **fields)


def compared(base: RunFacts, target: RunFacts) -> ComparedTarget:
    (result,) = compare_facts(base, [target]).targets
    return result


def test_same_batch_on_eight_devices() -> None:
    # Each rank has 32 samples. 1 rank: 32 in 80 ms. 8 ranks: 256 in 100 ms.
    # Throughput: (256 / 100) / (32 / 80) = 6.4. Efficiency: 6.4 / 8 = 0.8.
    result = compared(run(1, 80), run(8, 82, 18))
    assert result.verdict == "scaled"
    scaling = result.scaling
    assert scaling is not None
    assert (scaling.base_devices, scaling.target_devices) == (1, 8)
    assert scaling.throughput_ratio == pytest.approx(6.4)
    assert scaling.efficiency == pytest.approx(0.8)
    assert scaling.low_efficiency == pytest.approx(0.8)  # equal steps: no spread
    # 20 ms are lost: 18 to communication, 2 to slower compute.
    assert [(cause.cause, cause.change_ns) for cause in scaling.lost] == [
        ("communication", ms(18)),
        ("compute-32", ms(2)),
    ]
    assert result.headline == (
        "6.40 times the throughput with 8 devices instead of 1 device: 80.0 % scaling efficiency"
    )
    assert result.explanation is not None
    assert "20.0 ms longer" in result.explanation
    assert "communication +18.0 ms" in result.explanation.lower()
    assert result.warnings == []


def test_same_samples_in_all_split_over_four_devices() -> None:
    # 32 samples in 80 ms on one rank; 8 on each of four ranks in 25 ms.
    # Throughput: (32 / 25) / (32 / 80) = 3.2. Efficiency: 3.2 / 4 = 0.8.
    # A perfect step computes for 80 / 4 = 20 ms; 5 ms of communication are lost.
    result = compared(run(1, 80), run(4, 20, 5, setup={"batch": 8}))
    assert result.scaling is not None
    assert result.scaling.throughput_ratio == pytest.approx(3.2)
    assert result.scaling.efficiency == pytest.approx(0.8)
    assert [(cause.cause, cause.change_ns) for cause in result.scaling.lost] == [
        ("communication", ms(5)),
        ("compute-32", 0),
    ]


def test_efficiency_is_the_same_in_both_directions() -> None:
    result = compared(run(8, 82, 18), run(1, 80))
    assert result.scaling is not None
    assert result.scaling.efficiency == pytest.approx(0.8)
    assert result.scaling.throughput_ratio == pytest.approx(1 / 6.4)
    assert [cause.change_ns for cause in result.scaling.lost] == [ms(18), ms(2)]


def test_interval_of_the_efficiency_contains_it() -> None:
    base = facts(*map(ms, (79, 80, 81)), setup=setup(world_size=1, batch=32))
    target = facts(*map(ms, (95, 100, 105)), setup=setup(world_size=2, batch=32))
    scaling = compared(base, target).scaling
    assert scaling is not None
    assert scaling.low_efficiency is not None
    assert scaling.high_efficiency is not None
    assert scaling.low_efficiency < scaling.efficiency == pytest.approx(0.8)
    assert scaling.efficiency < scaling.high_efficiency


def test_equal_shapes_tell_the_work_without_a_batch() -> None:
    unknown = {"batch": None}
    base, target = (
        run(1, 80, setup=unknown, shapes=LINEAR),
        run(2, 100, setup=unknown, shapes=LINEAR),
    )
    assert compared(base, target).scaling is not None


@pytest.mark.parametrize(
    ("base", "target"),
    [
        pytest.param(
            run(1, 80, setup={"batch": None}), run(8, 100, setup={"batch": None}), id="no shapes"
        ),
        pytest.param(
            run(1, 80, setup={"batch": None}, shapes=LINEAR),
            run(8, 100, setup={"batch": None}, shapes=HALF),
            id="other shapes, of unknown meaning",
        ),
        pytest.param(
            run(1, 80), run(8, 100, setup={"parallelism": ["tensor parallel"]}), id="split model"
        ),
        pytest.param(run(1, 80), run(8, 100, setup={"device": "NVIDIA A100"}), id="other device"),
        pytest.param(run(1, 80), run(8, 100, setup={"devices_used": None}), id="missing devices"),
        pytest.param(run(2, 80), run(2, 100), id="as many devices"),
    ],
)
def test_scaling_is_unknown(base: RunFacts, target: RunFacts) -> None:
    result = compared(base, target)
    assert result.scaling is None
    assert result.verdict == "slower"


def test_ranks_on_the_cpu_are_counted() -> None:
    host = {"device": None, "devices_used": 0}
    result = compared(run(1, 80, setup=host), run(2, 100, setup=host))
    assert result.scaling is not None
    assert result.scaling.is_of_ranks
    assert "with 2 ranks instead of 1 rank" in result.headline


def test_table_of_runs_counts_devices_or_ranks_only_if_they_differ() -> None:
    def headings(base: RunFacts, target: RunFacts) -> list[str]:
        comparison = compare_facts(base, [target])
        return [
            column.heading for column in run_columns([comparison.base, compared(base, target).run])
        ]

    host = {"device": None, "devices_used": 0}
    assert "Devices" in headings(run(1, 80), run(8, 100))
    assert "Ranks" in headings(run(1, 80, setup=host), run(2, 100, setup=host))
    assert not {"Devices", "Ranks"} & set(headings(run(2, 80), run(2, 100)))


def course(*runs: RunFacts) -> list[str]:
    return compare_facts(runs[0], runs[1:]).scaling_course


def test_scaling_breaks_where_a_device_brings_less_than_half() -> None:
    # Samples per ms: 32 / 80 = 0.4; 2 x 32 / 84 = 0.762; 4 x 32 / 120 = 1.067.
    # The second device brings 0.362 of 0.4 (90 %); two more bring 0.152 each of 0.381 (40.0 %).
    two, four = run(2, 80, 4), run(4, 80, 40)
    expected = (
        "Scaling breaks from 2 to 4 devices: of the throughput that each of 2 brings, each one"
        " added brings 40.0 % of it. Exposed communication grows most, by 36.0 ms per step."
    )
    assert course(run(1, 80), two, four) == [expected]
    assert course(run(1, 80), four, two) == [expected]


def test_scaling_that_holds_names_the_least_that_a_device_brings() -> None:
    # 0.4; 0.762; 4 x 32 / 88 = 1.455: each of two more brings 0.346 of 0.381, or 90.9 %.
    (sentence,) = course(run(1, 80), run(2, 80, 4), run(4, 80, 8))
    assert sentence == (
        "Scaling holds from 1 to 4 devices: each one added brings 90.5 % or more of what each"
        " before it brings."
    )


def test_more_devices_may_cost_throughput() -> None:
    (sentence,) = course(run(1, 80), run(2, 80, 4), run(4, 80, 200))
    assert "each one added costs throughput" in sentence


def test_two_numbers_of_devices_have_no_course() -> None:
    assert course(run(1, 80), run(2, 80, 4)) == []
    assert course(run(1, 80), run(2, 80, 4), run(2, 80, 6)) == []
