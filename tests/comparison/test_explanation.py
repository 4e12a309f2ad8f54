from __future__ import annotations

import pytest

from tb_perfadvisor.comparison.compare import compare_facts
from tb_perfadvisor.contract.model import ComparedTarget
from tb_perfadvisor.testing import ms
from tests.support.comparison_facts import facts, finding, setup


def compared(base: dict[str, int], target: dict[str, int]) -> ComparedTarget:
    """Four steps each, with these milliseconds of each cause."""
    runs = [
        facts(
            *[ms(sum(causes.values()))] * 4,
            causes={cause: 4 * ms(number) for cause, number in causes.items()},
            findings=[finding("input-stall", 0, 4 * ms(50), 4 * ms(50), {"input": 4 * ms(50)})]
            if causes is base
            else [],
        )
        for causes in (base, target)
    ]
    (result,) = compare_facts(runs[0], runs[1:]).targets
    return result


def test_loader_workers_that_slow_the_step_down() -> None:
    # 279 ms become 429: 54 ms less input, 204 ms more operators.
    result = compared({"input": 54, "host-compute": 225}, {"host-compute": 429})
    assert result.verdict == "slower"
    assert result.explanation == (
        "Waiting for input fell by 54.0 ms, but operators on the host grew by 204 ms. "
        "Loader workers and input threads may take cores from the step."
    )


@pytest.mark.parametrize(
    ("base", "target", "expected"),
    [
        (
            {"input": 50, "python": 50},
            {"input": 90, "python": 50},
            "Waiting for input grew by 40.0 ms.",
        ),
        (
            {"copies": 20, "compute-16": 80},
            {"copies": 5, "compute-16": 95},
            "Exposed copies fell by 15.0 ms, but compute, 16-bit grew by 15.0 ms.",
        ),
        # A hundredth of the step and less is noise: 8 ms of 800 are, 9 ms are not.
        ({"input": 60, "python": 740}, {"input": 52, "python": 748}, None),
        ({"input": 60, "python": 740}, {"input": 52, "python": 749}, None),
        (
            {"input": 60, "python": 740},
            {"input": 51, "python": 749},
            "Waiting for input fell by 9.00 ms, but Python grew by 9.00 ms.",
        ),
        # Faster.
        ({"input": 90, "python": 10}, {"input": 5, "python": 20}, None),
    ],
)
def test_what_grew(base: dict[str, int], target: dict[str, int], expected: str | None) -> None:
    assert compared(base, target).explanation == expected


def test_runs_that_cannot_be_compared() -> None:
    on_gpus = facts(ms(10), ms(10), setup=setup(device="NVIDIA H100", world_size=8))
    on_cpu = facts(ms(20), ms(20), setup=setup(device=None, world_size=2))
    (result,) = compare_facts(on_gpus, [on_cpu]).targets
    assert result.verdict == "not_comparable"
    assert result.headline.startswith("Not comparable: one ran on the CPU")
    assert (result.change.speed_up, result.causes, result.findings) == (None, [], [])
    assert "ranks-differ" in [warning.id for warning in result.warnings]
    # With the same batch and ranks, the speed-up of a device means something.
    same = [
        facts(ms(ns), ms(ns), setup=setup(device=device, batch=32))
        for device, ns in (("NVIDIA H100", 10), (None, 200))
    ]
    (result,) = compare_facts(same[1], same[:1]).targets
    assert (result.verdict, result.change.speed_up) == ("faster", 20.0)
