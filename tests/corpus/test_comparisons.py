"""Comparisons of real profiles, through the command line's JSON.

Expected numbers are those of other tools and of scripts independent of this package (the corpus'
INDEX.md); the source is named at each assertion.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import run
from tests.support.slowed_profiles import slowed

Json = dict[str, Any]


def _run(corpus: Path, *paths: str, options: tuple[str, ...] = ()) -> tuple[int, str]:
    done = run("compare", *(corpus / path for path in paths), *options, status=None)
    return done.returncode, done.stdout


@cache
def _document(corpus: Path, *paths: str) -> Json:
    status, text = _run(corpus, *paths, options=("--format", "json"))
    assert status == 0
    document: Json = json.loads(text)
    return document


def _compared(corpus: Path, base: str, target: str) -> Json:
    (comparison,) = _document(corpus, base, target)["comparisons"]
    (result,) = comparison["targets"]
    for column in ("base_ns", "target_ns", "change_ns"):
        assert sum(cause[column] for cause in result["causes"]) == result["change"][column]
    return result  # type: ignore[no-any-return]


def _cause(result: Json, cause: str) -> Json:
    return next(row for row in result["causes"] if row["cause"] == cause)


def _finding(result: Json, rule_id: str) -> Json:
    return next(finding for finding in result["findings"] if finding["rule_id"] == rule_id)


def _warnings(result: Json) -> set[str]:
    return {warning["id"] for warning in result["warnings"]}


WORKERS_0, WORKERS_4 = "kineto/resnet50_num_workers_0", "kineto/resnet50_num_workers_4"


def test_workers_for_the_loader_of_resnet50(corpus: Path) -> None:
    result = _compared(corpus, WORKERS_0, WORKERS_4)
    assert (result["verdict"], result["per"]) == ("faster", "step")
    # INDEX: steps of 174.829 and 139.692 ms on average.
    assert result["change"]["change_ns"] == pytest.approx(-35.1e6, abs=0.3e6)
    assert result["change"]["low_ns"] < -50e6 < result["change"]["high_ns"] < 0
    # The PyTorch plugin's golden lines: DataLoader of 59.262 and of 0.84 % of 141.07 ms.
    assert result["causes"][0]["cause"] == "input"
    assert result["causes"][0]["change_ns"] == pytest.approx(-58.1e6, abs=1.2e6)
    # The same: kernels of 98.589 and 99.145 ms, within which nothing has changed.
    assert abs(_cause(result, "compute-32")["change_ns"]) < 3e6
    stall = _finding(result, "input-stall")
    assert (stall["status"], stall["causes"]) == ("fixed", ["input"])
    # At most the whole wait; some of it was expected to be waited elsewhere.
    assert stall["predicted"]["expected_ns"] < stall["achieved_ns"] < stall["predicted"]["high_ns"]
    # Still there, and with the stall gone more of it is expected to reach the step.
    precision = _finding(result, "full-precision-compute")
    assert precision["status"] == "changed"
    assert precision["achieved_ns"] is None or precision["achieved_ns"] <= 0
    assert _warnings(result) == {"uneven-steps"}
    # INDEX: 32 images a step, by its shapes; 6 steps.
    assert (result["run"]["batch"], result["run"]["steps"]) == (32, 6)


def test_what_the_terminal_says_of_it(corpus: Path) -> None:
    status, text = _run(corpus, WORKERS_0, WORKERS_4, options=("--fail-on-regression", "1"))
    # Slower by 1 % at most, even at the high end.
    assert status == 0
    assert "1.25 times as fast: a step takes 140 ms instead of 175 ms" in text
    (stall,) = [line for line in text.splitlines() if line.startswith("input-stall")]
    assert stall.split()[1:3] == ["44.4", "ms"]
    assert "57.5 ms (130 %)" in stall
    status, text = _run(corpus, WORKERS_4, WORKERS_0, options=("--fail-on-regression", "1"))
    # Slower by 25 %, and by 4 ms at least: 35.1 ms a step, of which 31.5 may be chance.
    assert status == 1


def test_a_step_that_was_cut_off_does_not_hide_a_regression(corpus: Path, tmp_path: Path) -> None:
    # INDEX: five steps of 60.1 ms, and a marker that was left open for 0.018 ms at the end.
    base = corpus / "modded-nanogpt" / "current_a"
    copy = slowed(base, tmp_path / "slower", 1.3)
    done = run("compare", base, copy, "--fail-on-regression", 5, status=1)
    assert "1.30 times as long" in done.stdout


def test_fewer_bits_for_segment_anything(corpus: Path) -> None:
    result = _compared(corpus, "sam-fast/asdf_False_a73da0d1", "sam-fast/asdf_True_10b61b2f")
    # INDEX: no steps; spans of 2796.456 and 1944.906 ms.
    assert (result["verdict"], result["per"]) == ("no_steps", "window")
    assert result["change"]["change_ns"] == pytest.approx((1944.906 - 2796.456) * 1e6, abs=1e3)
    assert {"no-steps", "precision-differs"} <= _warnings(result)
    # INDEX: low precision from 0 to 37 % of kernel time.
    wide, narrow = _cause(result, "compute-32"), _cause(result, "compute-16")
    assert narrow["base_ns"] == 0
    assert wide["change_ns"] < -1e9
    assert _finding(result, "full-precision-compute")["status"] == "fixed"
    # INDEX: 7023 and 6867 waits for the stream: those have stayed.
    assert _finding(result, "device-synchronization")["status"] in ("unchanged", "changed")
    status = {row["name"]: row["status"] for row in result["kernels"]["rows"]}
    assert status["ampere_sgemm_128x64_tn"] == "removed"


def test_time_that_disappeared_from_segment_anything_counts_once(corpus: Path) -> None:
    result = _compared(
        corpus, "pytorch-labs/01_143a949f_asdf_True", "pytorch-labs/03_c84af299_asdf_True"
    )
    # INDEX: 2.26 s and 509 ms.
    change = result["change"]["change_ns"]
    assert change == pytest.approx((508.7 - 2256.9) * 1e6, rel=0.001)
    achieved = {
        finding["rule_id"]: finding["achieved_ns"]
        for finding in result["findings"]
        if finding["achieved_ns"] is not None
    }
    assert 0.5 * -change < sum(achieved.values()) <= -change
    # Most of the waits are gone, and what they took lies in its range.
    waits = _finding(result, "device-synchronization")
    assert waits["predicted"]["low_ns"] < achieved[waits["rule_id"]] < waits["predicted"]["high_ns"]


@pytest.mark.parametrize(
    ("base", "target", "step_ms", "input_share"),
    [
        # INDEX: steps on average, and the fetching's share of them.
        (
            "local-torch2.13-cpu/conv_dl0_slow_rich",
            "local-torch2.13-cpu/conv_dl0_fast_rich",
            (370.322, 36.045),
            (0.894, 0.066),
        ),
        (
            "local-tf-cpu/keras_slow_input",
            "local-tf-cpu/keras_prefetch_fast",
            (84.0, 19.0),
            (0.791, 0.014),
        ),
    ],
)
def test_the_gain_lies_in_the_predicted_range(
    corpus: Path,
    base: str,
    target: str,
    step_ms: tuple[float, float],
    input_share: tuple[float, float],
) -> None:
    result = _compared(corpus, base, target)
    assert result["verdict"] == "faster"
    (before, after), (slow, fast) = step_ms, input_share
    assert result["change"]["change_ns"] == pytest.approx((after - before) * 1e6, rel=0.01)
    assert result["causes"][0]["cause"] == "input"
    assert result["causes"][0]["change_ns"] == pytest.approx(
        (fast * after - slow * before) * 1e6, rel=0.01
    )
    stall = _finding(result, "input-stall")
    assert stall["is_in_range"] is True
    assert _warnings(result) <= {"uneven-steps"}


def test_16_bits_on_a_processor_without_them(corpus: Path) -> None:
    base, target = "local-torch2.13-cpu/mlp_fp32", "local-torch2.13-cpu/mlp_bf16_autocast"
    result = _compared(corpus, base, target)
    # INDEX: 110 against 9.7 ms.
    assert result["verdict"] == "slower"
    means = result["change"]["base_ns"] / result["change"]["target_ns"]
    assert means == pytest.approx(9.7 / 110, rel=0.02)
    assert "precision-differs" in _warnings(result)
    assert result["operators"]["rows"][0]["name"] == "aten::mm"
    assert _run(corpus, base, target, options=("--fail-on-regression", "50"))[0] == 1
    # For sure it is not 20 times as slow.
    assert _run(corpus, base, target, options=("--fail-on-regression", "2000"))[0] == 0


def test_another_machine_with_another_number_of_ranks(corpus: Path) -> None:
    result = _compared(corpus, "hta/trace_diff_control", "hta/trace_diff_test")
    # INDEX: A100, rank 3 of 8, 77.491 ms; V100, rank 1 of 2, 124.067 ms.
    assert result["verdict"] == "slower"
    assert result["change"]["change_ns"] == pytest.approx((124.067 - 77.491) * 1e6, rel=0.01)
    assert {"device-differs", "ranks-differ"} <= _warnings(result)


def test_a_rank_that_sleeps(corpus: Path) -> None:
    straggler = "local-torch2.13-cpu/ddp_gloo_2rank_straggler"
    result = _compared(corpus, straggler, "local-torch2.13-cpu/ddp_gloo_2rank")
    # INDEX: rank 1, which the others wait for, sleeps 50 ms a step in code that nothing records.
    assert result["causes"][0]["cause"] == "unexplained"
    assert result["causes"][0]["change_ns"] == pytest.approx(-50e6, rel=0.05)


def test_a_session_and_its_copy_are_the_same(corpus: Path) -> None:
    # INDEX: a copy with XProf's caches beside it.
    base, copy = "local-jax-cpu/train_steps", "local-jax-cpu/train_steps_with_xprof_cache"
    result = _compared(corpus, base, copy)
    assert (result["verdict"], result["change"]["change_ns"]) == ("inconclusive", 0)
    assert result["operators"]["rows"] == []


def test_sums_of_tensorflow_s_old_profiler(corpus: Path) -> None:
    session = "xprof-demo/plugins/profile/GPU-input-bound"
    result = _compared(corpus, session, session)
    assert (result["per"], result["change"]["change_ns"]) == ("step", 0)
    # What was summed up over more than the steps cannot be set against steps.
    assert (result["kernels"], result["operators"]) == (None, None)
