"""Reports in narrow terminals and with long texts."""

from __future__ import annotations

import ast
import io
import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from tb_perfadvisor import analyze
from tb_perfadvisor.contract import model
from tb_perfadvisor.report.formats.render import document
from tb_perfadvisor.report.formats.text import print_document
from tb_perfadvisor.report.formats.wording import marginal_text, saving_text, steps_left_out
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.units import format_duration

DEMO_LOGS = Path(__file__).resolve().parents[2] / "demo_logs"


@cache
def report_of(run: str) -> Report:
    return analyze(DEMO_LOGS / run)


def shown(report: Report, width: int) -> list[str]:
    stream = io.StringIO()
    print_document(document([report]), Console(file=stream, width=width, highlight=False))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def code_of(lines: list[str]) -> str:
    """The code of the first remedy of `jax_healthy`."""
    begin = next(place for place, line in enumerate(lines) if "train_step(state, batch)" in line)
    begin -= "#" in lines[begin - 1]
    end = next(place for place in range(begin, len(lines)) if not lines[place])
    return textwrap.dedent("\n".join(lines[begin:end]))


@pytest.mark.parametrize("width", [56, 64, 80, 120])
def test_code_copied_from_a_narrow_terminal_still_runs(width: int) -> None:
    code = code_of(shown(report_of("jax_healthy"), width))
    assert len(ast.parse(code).body) == 3
    assert "# returns before it is computed" in code


def test_a_comment_moves_above_its_line_only_if_needed() -> None:
    wide, narrow = (code_of(shown(report_of("jax_healthy"), width)) for width in (120, 56))
    assert wide.startswith("state, loss = train_step(state, batch)   # returns before")
    assert narrow.startswith("# returns before it is computed\nstate, loss = train_step(state, ba")


def test_what_to_record_is_aligned_next_to_the_number_of_checks() -> None:
    lines = shown(report_of("pytorch_ddp_balanced"), 60)
    (heading,) = (line for line in lines if line.startswith("Another recording would allow "))
    begin = lines.index(heading) + 1
    assert lines[begin][:5].strip().isdigit()
    for line in lines[begin : begin + 6]:
        assert line.startswith(" " * 7) or line[:5].strip().isdigit(), line


def test_what_to_record_is_said_once() -> None:
    text = " ".join("\n".join(shown(report_of("pytorch_input_slow"), 120)).split())
    assert text.count("Record with profile_memory=True.") == 1
    assert "the program ran on the CPU alone" not in text


def test_a_group_has_a_heading_and_numbers_below_it() -> None:
    lines = shown(report_of("pytorch_input_slow"), 120)
    assert "1. Feed the step without making it wait  input-stall" in lines
    (specific,) = (line for line in lines if "loader-in-main-process" in line)
    assert specific.startswith("   1a. Load batches in worker processes: each takes 56.5 ms now")
    # What both advise is said once.
    assert sum("persistent_workers=True" in line for line in lines) == 1


def test_what_a_finding_adds_to_those_above_stands_with_its_saving() -> None:
    report = report_of("pytorch_ddp_straggler")
    first, second = report.findings[0], report.findings[1]
    assert (first.saving, second.saving) != (None, None)
    assert marginal_text(first) == ""
    assert second.saving is not None
    added = format_duration(second.saving.marginal_ns) if second.saving.marginal_ns else "nothing"
    assert marginal_text(second) == f"adds {added} to the changes above"
    assert any(line.endswith(marginal_text(second)) for line in shown(report, 160))


def test_a_range_with_equal_ends_is_not_shown() -> None:
    report = report_of("pytorch_input_slow")
    finding = report.findings[0]
    assert finding.saving is not None

    def text(saving: model.SavingInfo | None, bounds: model.SavingBounds | None = None) -> str:
        return saving_text(replace(finding, saving=saving, bounds=bounds), report)

    close = replace(finding.saving, low_ns=56_300_000, expected_ns=56_310_000, high_ns=56_320_000)
    assert "between" not in text(close)
    assert "between 56.3 ms and 56.4 ms" in text(replace(close, high_ns=56_360_000))
    unsure = replace(close, low_ns=0, high_ns=60_000_000)
    assert text(unsure).endswith("(31.7 %), at most 60.0 ms, modeled")
    costly = replace(unsure, low_ns=-5_000_000)
    assert text(costly).endswith("(31.7 %), from 5.00 ms longer to 60.0 ms shorter, modeled")
    nothing = replace(unsure, expected_ns=0)
    assert text(nothing).startswith("saves nothing alone, at most 60.0 ms per step")
    assert text(None) == "saving not estimated"
    bounds = model.SavingBounds(high_ns=60_000_000, share_high=0.5)
    assert (
        text(None, bounds)
        == "saves up to 60.0 ms per step (50.0 %); the profile cannot tell how much"
    )
    bounds = model.SavingBounds(high_ns=60_000_000, share_high=0.5, low_ns=2_000_000)
    assert text(None, bounds) == (
        "saves 2.00 ms to 60.0 ms per step (50.0 %); the profile cannot tell how much"
    )


def test_a_finding_that_explains_another_one_saves_a_part_of_it() -> None:
    report = report_of("pytorch_input_slow")
    assert [marginal_text(finding) for finding in report.findings if finding.refines] == [
        "part of the saving above"
    ]


def test_nothing_to_change_takes_a_check_that_passed() -> None:
    report = replace(report_of("jax_healthy"), findings=[], first=None)
    assert "Nothing to change." in shown(report, 80)
    unchecked = [out for out in report.outcomes if out.status != "passed"]
    lines = shown(replace(report, outcomes=unchecked), 80)
    assert "No findings, because nothing could be checked." in lines
    assert "Nothing to change." not in lines


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        ([1932], "step 1932"),
        ([3, 7], "steps 3 and 7"),
        ([3, 4, 5], "steps 3, 4 and 5"),
        (range(13), "13 steps"),
    ],
)
def test_numbers_of_steps_do_not_read_like_counts(numbers: Sequence[int], named: str) -> None:
    report = report_of("jax_healthy")
    excluded = [model.ExcludedStep(index=number, reason="partial") for number in numbers]
    excluded.append(model.ExcludedStep(index=99, reason="warm-up"))
    report = replace(report, steps=replace(report.steps, excluded=excluded))
    assert steps_left_out(report) == f"Left out: {named} (partial); step 99 (warm-up)."
