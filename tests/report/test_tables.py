"""Tables for other programs, opened by them, have the numbers of the report."""

from __future__ import annotations

import csv
import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pandas
import pytest
from msgspec.structs import replace

from tb_perfadvisor import analyze
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.report.tables import TABLES, table_of, write_tables
from tests.support.command import DEMO, ROOT, SLOW, error, run


@cache
def ranks() -> Report:
    return analyze(DEMO / "synthetic_gpu_allreduce_8rank", Config(with_views=True))


def records(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """Rows with None for what is missing."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_what_pandas_and_duckdb_open_equals_the_report(tmp_path: Path, ending: str) -> None:
    report = ranks()
    write_tables([report], tmp_path)
    for name in TABLES:
        path = tmp_path / f"{name}.{ending}"
        text = dict.fromkeys((name for name, kind in TABLES[name].items() if kind is str), str)
        frame = pandas.read_csv(path, dtype=text) if ending == "csv" else pandas.read_parquet(path)
        expected = table_of([report], name).rows
        assert records(frame) == expected, name
        assert duckdb.sql(f"select count(*) from '{path}'").fetchall() == [(len(expected),)]
    assert report.views is not None
    kernels = report.views["kernels"]
    assert duckdb.sql(
        f"select family, sum(count), sum(total_ns) from '{tmp_path}/kernels.{ending}' "
        "group by family order by 3 desc"
    ).fetchall() == [
        (each["name"], each["count"], each["total_ns"]) for each in kernels["families"]
    ]
    saving = report.findings[0].saving
    assert saving is not None
    assert duckdb.sql(
        f"select rule_id, expected_ns, marginal_ns from '{tmp_path}/findings.{ending}' limit 1"
    ).fetchall() == [(report.findings[0].rule_id, saving.expected_ns, saving.marginal_ns)]


def test_steps_add_up() -> None:
    steps = table_of([ranks()], "steps").rows
    assert len(steps) == ranks().steps.used
    causes = [column for column in TABLES["steps"] if column.endswith("_ns")][2:]
    assert causes[0] == "compute_8_ns"
    for row in steps:
        assert sum(row[cause] for cause in causes) == row["duration_ns"]


def test_unknown_is_empty_and_names_are_plain(tmp_path: Path) -> None:
    (first, *_) = ranks().findings
    bare = replace(ranks(), run="a\nb", findings=[replace(first, saving=None, title='"x", y')])
    write_tables([bare], tmp_path)
    with (tmp_path / "findings.csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert (row["run"], row["title"], row["expected_ns"]) == (
        "a\N{REPLACEMENT CHARACTER}b",
        '"x", y',
        "",
    )
    assert records(pandas.read_parquet(tmp_path / "findings.parquet"))[0]["expected_ns"] is None


def test_the_command_writes_all_runs_beside_its_report(tmp_path: Path) -> None:
    shown = run("analyze", DEMO, "--run", "pytorch_input", "--format", "json", "--tables", tmp_path)
    assert "2 captures, 2 findings, 10 steps, 0 kernels" in shown.stderr
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".parquet"}
    reports = json.loads(shown.stdout)["reports"]
    captures = pandas.read_csv(tmp_path / "captures.csv")
    assert list(captures.step_time_ns) == [each["overview"]["step_time_ns"] for each in reports]
    assert reports[0]["views"] is None


def test_rows_that_are_left_out_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = ranks()
    assert report.views is not None
    cut = {**report.views, "kernels": {**report.views["kernels"], "truncated": 7}}
    assert table_of([replace(report, views=cut)] * 2, "kernels").left_out == 14


def test_the_queries_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_tables([ranks()], Path("tables"))
    page = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    families, inputs = (
        duckdb.sql(query).fetchall()
        for query in re.findall(r"^```sql\n(.*?)^```$", page, re.M | re.S)
    )
    # 64 kernels of 1.25 ms and 64 of 0.625 ms are 120 ms.
    assert families[0] == (ranks().run, "matmul", 120.0)
    assert inputs[0][0] == ranks().run
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    exec(example, {})


def test_the_bound_is_that_of_tables_and_not_that_of_the_tab(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = analyze(SLOW, Config(with_views=True, with_all_rows=True))
    table = table_of([whole], "operators")
    assert whole.views is not None
    assert sum(row["self_ns"] for row in table.rows) == whole.views["operators"]["self_ns"]
    monkeypatch.setattr("tb_perfadvisor.report.views._ALL_ROWS", 3)
    cut = table_of([analyze(SLOW, Config(with_views=True, with_all_rows=True))], "operators")
    assert cut.rows == table.rows[:3]
    assert cut.left_out == len(table.rows) - 3


def test_csv_alone_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    write_tables([ranks()], tmp_path / "new" / "folder")
    names = {path.name for path in (tmp_path / "new" / "folder").iterdir()}
    assert names == {f"{name}.csv" for name in TABLES}


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    assert "--tables: and `--format html` need a run each" in error(
        "analyze", SLOW, "--tables", tmp_path, "--format", "html"
    )
    (tmp_path / "file").touch()
    assert "cannot be made" in error("analyze", SLOW, "--tables", tmp_path / "file" / "tables")
    with pytest.raises(UsageError, match="there is no table 'no'"):
        table_of([ranks()], "no")
