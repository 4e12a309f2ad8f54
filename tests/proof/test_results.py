"""Whether results agree, and how verdicts are worded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from tb_perfadvisor.proof.candidates import Candidate
from tb_perfadvisor.proof.results import compare_results
from tb_perfadvisor.proof.runs import Plan, Run
from tb_perfadvisor.proof.shares import Prediction
from tb_perfadvisor.proof.trial import try_change
from tb_perfadvisor.proof.wording import detail_lines, verdict_line
from tests.proof.stand_ins import BASE, CHANGE, Program

RUN = Program().measure(BASE, "base", Plan(), 60)
CANDIDATE = Candidate(
    "fused-optimizer", True, "", "", Path(), (), Prediction(0.12, 0.15, 0.21), "", None
)


def with_losses(*losses: float | None) -> Run:
    return replace(RUN, series={"loss": losses})


def test_noise_of_the_original_widens_what_is_equal() -> None:
    # Without a seed of its own, losses of the original differ by 10 % of their mean.
    noisy = [with_losses(1.0, 1.0, 1.0), with_losses(1.1, 1.0, 0.9)]
    changed = with_losses(1.0, 1.2, 1.0)
    assert compare_results(noisy, [changed], "").agreement == "equal"
    quiet = [with_losses(1.0, 1.0, 1.0)] * 2
    assert compare_results(quiet, [changed], "").agreement == "different"
    # Three times the noise is the limit.
    assert compare_results(noisy, [with_losses(1.0, 1.4, 1.0)], "").agreement == "different"


def test_tensors_are_compared_by_their_distance() -> None:
    def run(values: list[float]) -> Run:
        return replace(RUN, tensors={"head.weight": np.array(values)})

    base = run([3.0, 4.0])
    assert compare_results([base, base], [run([3.0, 4.0])], "").text == "tensors equal"
    # The distance is 0.5, a tenth of the length of 5.
    result = compare_results([base, base], [run([3.3, 4.4])], "")
    assert (result.agreement, result.text) == (
        "different",
        "tensor head.weight: differs by 10 %",
    )
    assert compare_results([base, base], [run([3.0])], "").agreement == "different"


def test_without_results_nothing_is_checked() -> None:
    bare = replace(RUN, series={})
    assert compare_results([bare, bare], [bare], "").agreement == "not checked"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            0.82,
            "fused-optimizer: 18 % faster (18 %, 95 %), predicted 12–21 %, losses equal",
        ),
        (1.25, "fused-optimizer: 25 % slower (25 %, 95 %), predicted 12–21 %, losses equal"),
        (
            1.01,
            "fused-optimizer: no difference within 3 %: 1.0 % slower (1.0 %, 95 %), "
            "predicted 12–21 %, losses equal",
        ),
    ],
)
def test_verdicts_in_one_line(change: float, line: str) -> None:
    program = Program(change=change)
    trial = try_change(program, BASE, CHANGE, "change", budget_s=600, clock=program.clock)
    assert verdict_line(CANDIDATE, trial) == line


def test_details() -> None:
    program = Program(change=0.5)
    trial = try_change(program, BASE, CHANGE, "change", budget_s=600, clock=program.clock)
    # Blocks of 21 steps of 10 ms, twelve of them.
    assert detail_lines(trial) == [
        "step 10.0 ms → 5.00 ms, 3 pairs of runs of 252 steps each",
        "equal per step: optimizer steps, backward passes, samples, input elements",
    ]
