"""Tables of evidence on terminals of any width: no number is cut or dropped silently."""

from __future__ import annotations

import io
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from tb_perfadvisor.contract.model import TableColumn, TableEvidence
from tb_perfadvisor.report.formats.text import TextTable

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


def test_a_wide_terminal_shows_everything() -> None:
    head, first, _ = shown(evidence(), 120)
    assert head.split() == ["Kernel", "Times", "Median", "size", "Time"]
    assert first.startswith(NAME)
    assert first.split()[-4:] == ["1,234", "–", "70.4", "ms"]


# 24 for the name, 5 for "1,234", 6 for "Median", 7 for "70.4 ms", and three gaps of two.
LEAST = 24 + 5 + 6 + 7 + 3 * 2


@pytest.mark.parametrize("width", range(LEAST, 100, 7))
def test_names_are_cut_before_numbers(width: int) -> None:
    lines = shown(evidence(), width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert (text.count("1,234"), text.count("70.4 ms"), "•" in text) == (1, 2, False)


@pytest.mark.parametrize("width", [LEAST - 1, 30, 20])
def test_a_narrow_terminal_lists_the_rows(width: int) -> None:
    lines = shown(evidence(), width)
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert NAME[:12] in text
    # Unknown cells are left out.
    assert text.count("• ") == 2
    assert "Times: 1,235 · Time: 70.4 ms" in text
    assert "Median" not in text


def test_a_cell_that_repeats_the_subject_is_left_out_of_the_list() -> None:
    columns = [
        TableColumn(key="name", label="Kernel", unit=""),
        TableColumn(key="operator", label="Operator", unit=""),
        TableColumn(key="module", label="Module", unit=""),
    ]
    rows: list[list[Any]] = [["gemm", "gemm", "up"], ["silu", "mlp", "mlp"]]
    lines = shown(TableEvidence(title="", columns=columns, rows=rows, truncated=0), 18)
    text = " ".join(" ".join(lines).split())
    assert text == "• gemm · Module: up • silu · Operator: mlp · Module: mlp"


def test_rows_left_out_are_counted() -> None:
    assert "more" not in " ".join(shown(evidence(rows=5), 120))
    assert shown(evidence(rows=7), 100)[-1] == "… and 2 more"
    # The report itself leaves out three more.
    assert shown(evidence(rows=7, truncated=3), 100)[-1] == "… and 5 more"


def test_a_table_without_rows_shows_its_header() -> None:
    assert shown(evidence(rows=0), 100) == ["Kernel  Times  Median size  Time"]


def test_blank_columns_are_left_out() -> None:
    table = evidence()
    blank = replace(table, rows=[[name, count, None, ""] for name, count, _, _ in table.rows])
    head, *_ = shown(blank, 120)
    # An unknown size is not blank.
    assert head.split() == ["Kernel", "Times", "Median", "size"]
