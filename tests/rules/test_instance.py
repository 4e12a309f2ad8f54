from __future__ import annotations

from tb_perfadvisor.rules.evidence.tables import MOST_CHARACTERS, instance_of
from tb_perfadvisor.rules.finding import Cell, Column, Finding, Table

COLUMNS = (Column("operator", "Operator"), Column("product", "Size"), Column("source", "Line"))


def table(*row: Cell, names_instance: bool = True) -> Table:
    return Table("", COLUMNS, (row,), names_instance=names_instance)


def test_the_first_row_names_what_a_finding_is_about() -> None:
    found = Finding("", evidence=(table("aten::mm", "(8, 4, 2)", "train.py:12 step"),))
    assert instance_of(found) == "aten::mm of (8, 4, 2) at train.py:12 step"
    assert instance_of(Finding("", evidence=(table("aten::mm", "", ""),))) == "aten::mm"


def test_what_the_rule_says_comes_first() -> None:
    evidence = (table("aten::mm", "", ""),)
    assert instance_of(Finding("", evidence=evidence, instance="3 of 4")) == "3 of 4"


def test_tables_of_other_things_name_nothing() -> None:
    other = table("in launch calls", "", "", names_instance=False)
    assert instance_of(Finding("", evidence=(other,))) == ""
    assert instance_of(Finding("", evidence=(table("(not recorded)", "", ""),))) == ""


def test_a_long_instance_leaves_out_the_line() -> None:
    row = ("x" * 40, "(1024, 1024, 1024)", "a/long/path/to/a/file.py:123 forward")
    text = instance_of(Finding("", evidence=(table(*row),)))
    assert text == f"{'x' * 40} of (1024, 1024, 1024)"
    assert len(text) <= MOST_CHARACTERS
