"""Evidence on terminals of any width: no number is cut, and none is left out unsaid."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from tb_perfadvisor.report.formats.text_table import TextTable
from tb_perfadvisor.report.model import TableColumn, TableEvidence

NAME = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4>(Params)"


def evidence(rows: int = 2, truncated: int = 0) -> TableEvidence:
    return TableEvidence(
        title="Kernels",
        columns=[
            TableColumn(key="name", label="Kernel", unit=""),
            TableColumn(key="count", label="Times", unit="count"),
            TableColumn(key="size", label="Median size", unit="bytes"),
            TableColumn(key="total", label="Time", unit="ns"),
        ],
        rows=[[NAME, 1_234 + row, None, 70_400_000] for row in range(rows)],
        truncated=truncated,
    )


def shown(table: TableEvidence, width: int, most_rows: int = 5) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width).print(TextTable(table, most_rows))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_where_there_is_room_all_is_there() -> None:
    head, first, _ = shown(evidence(), 120)
    assert head.split() == ["Kernel", "Times", "Median", "size", "Time"]
    assert first.startswith(NAME)
    assert first.split()[-4:] == ["1,234", "–", "70.4", "ms"]


# 24 of the name, 5 of "1,234", 6 of "Median", 7 of "70.4 ms" and three gaps of two.
LEAST = 24 + 5 + 6 + 7 + 3 * 2


@pytest.mark.parametrize("width", range(LEAST, 100, 7))
def test_names_are_cut_before_numbers(width: int) -> None:
    lines = shown(evidence(), width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert (text.count("1,234"), text.count("70.4 ms"), "•" in text) == (1, 2, False)


@pytest.mark.parametrize("width", [LEAST - 1, 30, 20])
def test_where_not_even_that_fits_rows_are_told_one_by_one(width: int) -> None:
    lines = shown(evidence(), width)
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert NAME[:12] in text
    # Unknown cells are left out.
    assert text.count("• ") == 2
    assert "Times: 1,235 · Time: 70.4 ms" in text
    assert "Median" not in text


def test_what_is_left_out_is_counted() -> None:
    assert "more" not in " ".join(shown(evidence(rows=5), 120))
    assert shown(evidence(rows=7), 100)[-1] == "… and 2 more"
    # Three of them were not kept in the report.
    assert shown(evidence(rows=7, truncated=3), 100)[-1] == "… and 5 more"


def test_a_table_without_rows_is_its_head() -> None:
    assert shown(evidence(rows=0), 100) == ["Kernel  Times  Median size  Time"]


def test_columns_without_anything_are_left_out() -> None:
    table = evidence()
    blank = replace(table, rows=[[name, count, None, ""] for name, count, _, _ in table.rows])
    head, *_ = shown(blank, 120)
    # The size is unknown, which is something to say.
    assert head.split() == ["Kernel", "Times", "Median", "size"]
