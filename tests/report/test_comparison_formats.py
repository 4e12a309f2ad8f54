"""Comparisons as people read them."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from rich.console import Console

from tb_perfadvisor.comparison.compare import compare_facts
from tb_perfadvisor.comparison.run_facts import OutcomeFacts, RunFacts
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.report.formats.comparison.render import comparison_document, render_comparison
from tb_perfadvisor.report.formats.comparison.text import print_comparisons
from tb_perfadvisor.report.formats.comparison.wording import shortened, signed
from tb_perfadvisor.testing import draw, ms
from tests.support.comparison_facts import FIXED, SLOW, facts, facts_of, finding, setup, times


def text(base: RunFacts, *targets: RunFacts, width: int = 80) -> str:
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, no_color=True, highlight=False)
    print_comparisons(comparison_document([compare_facts(base, targets)]), console)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def pair() -> tuple[RunFacts, RunFacts]:
    return facts_of(draw(SLOW), name="slow"), facts_of(draw(FIXED), name="fixed")


def test_a_pair_in_a_terminal() -> None:
    assert (
        text(*pair())
        == """\
Run       Step  Speed-up  Input wait  Compute  16-bit  Comm.     Busy
slow   10.0 ms      base      40.0 %   60.0 %   0.0 %  0.0 %   60.0 %
fixed  7.00 ms     1.43×       0.0 %  100.0 %   0.0 %  0.0 %  100.0 %
Synthetic, not recorded: slow, fixed

fixed vs. slow
1.43 times as fast: a step takes 7.00 ms instead of 10.0 ms
3.00 ms less per step (30.0 %)
4 steps vs. 3, 3.00 ms less, with 95 % confidence

Where the time goes     Base   Target    Change
Waiting for input    4.00 ms     0 ns  −4.00 ms  █████████████│
Compute, 32-bit      6.00 ms  7.00 ms  +1.00 ms               │███
Whole step           10.0 ms  7.00 ms  −3.00 ms

Finding      Predicted         Range         Achieved    Now
input-stall    3.00 ms  2.00–4.00 ms  4.00 ms (133 %)  fixed
Achieved: time that disappeared where the finding saw it, for any reason.

Kernel                     Base   Target    Change
ampere_sgemm_128x64_nn  6.00 ms  7.00 ms  +1.00 ms

Operator, device time     Base   Target    Change
aten::mm               6.00 ms  7.00 ms  +1.00 ms"""
    )


def many(width: int) -> str:
    """Everything at once: long names, all statuses, many runs."""
    long = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, X>(int)"
    )
    kernels = [
        (long.replace("X", letter * 12), ms(9 + index))
        for index, letter in enumerate("abcdefghijkl")
    ]
    passed = OutcomeFacts(status="passed", reason=None)
    base = facts(
        ms(100), ms(102), ms(104),
        name="experiments/a_rather_long_name_of_a_run/train",
        causes={"compute-32": ms(200), "input": ms(100), "python": ms(6)},
        kernels=times(*kernels, ("ampere_sgemm_128x64_tn", ms(90)), family="matmul"),
        operators=times(("StatefulPartitionedCall/model/dense_1/MatMul_1:MatMul", ms(60))),
        findings=[
            finding("device-synchronization", ms(6), ms(12), ms(18), {"input": ms(90)}),
            finding("full-precision-compute", ms(60), ms(90), ms(120), {"compute-32": ms(150)}),
        ],
        outcomes={"step-gap": passed, "device-synchronization": passed},
        device_compute_share=0.65, device_busy_share=0.7, sixteen_bit_share=0.0,
        input_wait_share=0.3, peak_allocated_bytes=3 << 30, setup=setup(batch=32),
    )  # fmt: skip
    target = facts(
        ms(80), ms(81), ms(79),
        name="experiments/another_long_name_of_a_run/train",
        causes={"compute-16": ms(220), "input": ms(15), "python": ms(5)},
        kernels=times(("ampere_sgemm_64x64_tn", ms(30)), family="matmul"),
        operators=times(("StatefulPartitionedCall/model/dense_2/MatMul_1:MatMul", ms(30))),
        findings=[finding("step-gap", ms(3), ms(6), ms(9), {"python": ms(9)})],
        outcomes={"device-synchronization": passed},
        setup=setup(batch=64),
    )  # fmt: skip
    return text(
        base, target, facts(ms(120), ms(90), name="c"), facts(ms(50), name="d"), width=width
    )


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_fits_and_never_cuts_a_number(width: int) -> None:
    shown = many(width)
    assert max(map(len, shown.splitlines())) <= width
    rows = [line for line in shown.splitlines() if "vectorized" in line]
    assert len(rows) >= 7
    for row in rows:
        assert re.search(r"\d\.\d+ ms +gone +−\d\.\d+ ms$", row), row


def test_long_names_and_all_statuses_are_shown() -> None:
    shown = many(120)
    for phrase in (
        "! The batch differs: 32 in the base, 64 in the target.",
        "~ ampere_sgemm_128x64_tn",
        "~ a different variant in the target",
        "~ StatefulPartitionedCall/model/dense_1/MatMul_1 ",
        "full-precision-compute: not checked in the target: the rule did not run",
        "step-gap",
        "new: 2.00 ms",
        "… and 5 more",
        "≈ 0.97×",  # 102 over 105 ms
        "20.0–40.0 ms",
    ):
        assert phrase in shown, phrase


def test_small_causes_are_shown_as_one_with_an_exact_sum() -> None:
    base = facts(ms(100), ms(100), causes={"input": ms(199), "python": 700_000, "copies": 300_000})
    target = facts(ms(50), ms(50), causes={"input": ms(99), "python": 750_000, "copies": 250_000})
    assert "Everything else       500 µs   500 µs      0 ns" in text(base, target)
    # A single small cause keeps its name.
    alone = [
        facts(*run.step_ns, causes={"input": run.window_ns - 9, "python": 9})
        for run in (base, target)
    ]
    assert "Python" in text(*alone)
    assert "Everything else" not in text(*alone)


def test_an_unchanged_run() -> None:
    same = facts(ms(100), ms(100), causes={"input": ms(150), "python": ms(50)})
    shown = text(same, same)
    assert "\nas long as before\n2 steps vs. 2, 0 ns less, with" in shown
    assert re.search(r"Waiting for input +75\.0 ms +75\.0 ms +0 ns", shown)
    assert re.search(r"Python +25\.0 ms +25\.0 ms +0 ns", shown)


def test_names_in_a_trace_cannot_inject_escapes_or_markup() -> None:
    base = facts(ms(9), ms(9), kernels=times(("\x1b[2J<img src=x onerror=alert(1)>|*x*", ms(9))))
    target = facts(ms(9), ms(9), name="\x1b]0;x\x07|run*", kernels=times(("other", ms(9))))
    assert "\x1b" not in text(base, target)
    page = render_comparison(comparison_document([compare_facts(base, [target])]), "markdown")
    assert "\x1b" not in page
    assert r"\<img src=x onerror=alert(1)\>\|\*x\*" in page
    assert r"\|run\*" in page


def test_markdown() -> None:
    base, target = pair()
    page = render_comparison(
        comparison_document([compare_facts(base, [target])], ["Run 'x' has no counterpart."]),
        "markdown",
    )
    assert page.startswith("# Compared with slow\n\n| Run | Step | Speed-up | Input wait |")
    assert "| fixed (synthetic) | 7.00 ms | 1.43× | 0.0 % |" in page
    assert "| Waiting for input | 4.00 ms | 0 ns | −4.00 ms |" in page
    assert "| **Whole step** | **10.0 ms** | **7.00 ms** | **−3.00 ms** |" in page
    assert "| input-stall | 3.00 ms | 2.00–4.00 ms | 4.00 ms (133 %) | fixed |" in page
    assert page.endswith("- Run 'x' has no counterpart.\n")


def test_json() -> None:
    base, target = pair()
    document = json.loads(
        render_comparison(comparison_document([compare_facts(base, [target])]), "json")
    )
    assert (document["schema_version"], document["generator"]["name"]) == (1, "tb_perfadvisor")
    ((comparison,), notes) = document["comparisons"], document["notes"]
    assert comparison["targets"][0]["verdict"] == "faster"
    assert notes == []


def test_unknown_formats() -> None:
    with pytest.raises(UsageError, match=r"unknown format 'pdf'\. Formats: json, markdown, text"):
        render_comparison(comparison_document([]), "pdf")


@pytest.mark.parametrize(
    ("change_ns", "expected"),
    [(ms(8.11), "+8.11 ms"), (-ms(57.5), "−57.5 ms"), (0, "0 ns")],
)
def test_signed(change_ns: int, expected: str) -> None:
    assert signed(change_ns) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("kernel<4, float>", "kernel<4…"), ("model/dense/MatMul", "…e/MatMul"), ("short", "short")],
)
def test_names_are_shortened_at_the_less_important_end(name: str, expected: str) -> None:
    assert shortened(name, 9) == expected


def _numbers(**fields: Any) -> RunFacts:
    return facts(ms(9), ms(9), **fields)


def test_columns_without_values_are_hidden() -> None:
    assert text(_numbers(), _numbers()).splitlines()[0].split() == ["Run", "Step", "Speed-up"]
    assert "Memory" in text(_numbers(), _numbers(peak_allocated_bytes=5)).splitlines()[0]


def test_runs_of_which_nothing_is_known_are_a_table_too() -> None:
    base, target = (facts(name=name) for name in ("first", "second"))
    assert text(base, target).startswith("Run     Step  Speed-up\nfirst      –      base\n")
    document = comparison_document([compare_facts(base, [target])])
    assert "| first | – | base |" in render_comparison(document, "markdown")


def test_synthetic_runs_are_marked() -> None:
    synthetic = [_numbers(is_synthetic=True, name=name) for name in "ab"]
    assert "Synthetic, not recorded: a, b" in text(*synthetic)
