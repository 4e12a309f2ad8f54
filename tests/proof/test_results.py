"""Whether results agree, and how verdicts are worded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from tb_perfadvisor.proof.results import Prediction, compare_results
from tb_perfadvisor.proof.runs import Plan, Run
from tb_perfadvisor.proof.session import Candidate
from tb_perfadvisor.proof.trial import try_change
from tb_perfadvisor.proof.wording import detail_lines, verdict_line
from tests.proof.stand_ins import BASE, CHANGE, Program

RUN = Program().measure(BASE, "base", Plan(), 60)
CANDIDATE = Candidate(
    "fused-optimizer", True, "", "", Path(), (), Prediction(0.12, 0.15, 0.21), "", None
)


def with_losses(*losses: float | None) -> Run:
    return replace(RUN, series={"loss": losses})


QUIET = [with_losses(1.0, 1.0, 1.0)] * 3
# Without seeds, losses of the original differ by 10 % of their mean.
NOISY = [with_losses(1.0, 1.0, 1.0), with_losses(1.1, 1.0, 0.9), with_losses(1.05, 1.0, 1.0)]


def test_losses_that_differ_between_runs_of_the_original_are_unseeded_noise() -> None:
    changed = with_losses(1.0, 1.2, 1.0)
    assert compare_results(QUIET, [changed], "").text == "loss: differs by 20 %"
    result = compare_results(NOISY, [changed], "")
    assert result.agreement == "not checked"
    assert result.text == (
        "losses differ by 10 % between two runs of the same version: unseeded noise"
    )
    assert "seed" in result.advice


def test_losses_beyond_unseeded_noise_differ() -> None:
    # The nearest run of the original, the second one, differs by 40 %: four times the noise.
    doubled = with_losses(1.5, 1.5, 1.5)
    assert compare_results(NOISY, [doubled], "").agreement == "different"
    # Two runs of the original may be close by chance.
    assert compare_results(NOISY[:2], [doubled], "").agreement == "not checked"
    # One run with the change that is near enough may be noise, too.
    assert compare_results(NOISY, [doubled, NOISY[1]], "").agreement == "not checked"
    # No noise explains values that are no numbers.
    nothing = with_losses(1.0, None, None)
    assert compare_results(NOISY[:2], [nothing], "").text == "loss: no number"


def test_a_change_that_adds_noise_is_refused() -> None:
    changed = [with_losses(1.0, 1.0, 1.0), with_losses(1.2, 1.0, 1.0)]
    result = compare_results(QUIET, changed, "")
    assert result.agreement == "different"
    assert result.text == (
        "loss: differs by 20 %; with the change, losses differ by 20 % between two runs of the "
        "same version: unseeded noise"
    )


def test_tensors_of_an_unseeded_program_are_not_compared() -> None:
    def run(value: float) -> Run:
        return replace(RUN, tensors={"weight": np.array([value])}, series={})

    result = compare_results([run(1.0), run(1.1)], [run(1.2)], "")
    assert (result.agreement, result.text) == (
        "not checked",
        "tensors differ by 10 % between two runs of the same version: unseeded noise",
    )
    result = compare_results([run(1.0), run(1.1), run(1.0)], [run(1.5)], "")
    assert result.text == "tensor weight: differs by 50 %"


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
            "fused-optimizer: 18 % faster (18 %, 95 %)",
        ),
        (1.25, "fused-optimizer: 25 % slower (25 %, 95 %)"),
        (
            1.01,
            "fused-optimizer: no difference within 3 %: 1.0 % slower (1.0 %, 95 %)",
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
    assert detail_lines(CANDIDATE, trial) == [
        "predicted: steps take 12–21 % less time",
        "results: losses equal",
        "step 10.0 ms → 5.00 ms, 3 pairs of runs of 252 steps each",
        "equal per step: optimizer steps, backward passes, samples, input elements",
    ]


def test_what_an_unseeded_loss_needs_is_said() -> None:
    program = Program(change=0.5)
    trial = try_change(program, BASE, CHANGE, "change", budget_s=600, clock=program.clock)
    noisy = replace(trial, results=compare_results(NOISY, NOISY, ""))
    assert detail_lines(CANDIDATE, noisy)[1:3] == [
        f"results: {noisy.results.text}",
        "to compare them: give each random generator of the program a seed, such as "
        "numpy.random.default_rng(0), and try again",
    ]
