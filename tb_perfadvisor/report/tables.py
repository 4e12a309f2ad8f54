"""Reports as tables: captures, findings, steps, kernels and operators, for other programs.

Rows have the report's own numbers. Names of columns have units, shares are 0-1, and what is unknown
is None.
"""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec

from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.names import device_name
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.output_files import write_file
from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.report.formats.wording import branches_of
from tb_perfadvisor.report.views.kernels import KernelPoint
from tb_perfadvisor.report.views.operators import OperatorRow
from tb_perfadvisor.signals import Cause

Columns = Mapping[str, type]
_PRODUCT = ("batch", "m", "n", "k")
_CAUSES = {cause.value: f"{cause.value.replace('-', '_')}_ns" for cause in Cause}


def _columns_of(struct: type[msgspec.Struct]) -> dict[str, type]:
    """The fields of a view's row, with their types."""
    return {
        name: next((kind for kind in get_args(hint) if kind is not NoneType), hint)
        for name, hint in get_type_hints(struct).items()
    }


def _kernel_columns() -> dict[str, type]:
    columns = _columns_of(KernelPoint)
    del columns["product"]
    return columns | dict.fromkeys(_PRODUCT, int)


_CAPTURE: Columns = {"run": str, "session": str}
TABLES: Mapping[str, Columns] = MappingProxyType(
    {
        "captures": {
            **_CAPTURE,
            **{"framework": str, "device": str, "rank": int, "trust": str, "steps": int},
            **{"step_time_ns": int, "headline": str},
        },
        "findings": {
            **_CAPTURE,
            **{"number": str, "rule_id": str, "title": str, "category": str, "severity": str},
            **{"refines": str, "low_ns": int, "expected_ns": int, "high_ns": int},
            **{"share_expected": float, "marginal_ns": int, "basis": str, "summary": str},
        },
        "steps": {
            **_CAPTURE,
            **{"step": int, "start_ns": int, "duration_ns": int},
            **dict.fromkeys(_CAUSES.values(), int),
        },
        "kernels": {**_CAPTURE, **_kernel_columns()},
        "operators": {**_CAPTURE, **_columns_of(OperatorRow)},
    }
)
"""The columns of each table by name, with the types of their values."""


class Table(NamedTuple):
    """Rows of one or more reports."""

    name: str
    rows: list[dict[str, Any]]
    """Each with the columns of `TABLES`."""
    left_out: int
    """Rows of kernels or operators that are not in the views, as they take the least time."""

    @property
    def columns(self) -> Columns:
        """The columns with the types of their values."""
        return TABLES[self.name]


def table_of(reports: Iterable[model.Report], name: str) -> Table:
    """One table of reports. All but captures and findings need reports with views."""
    if name not in TABLES:
        raise UsageError(f"there is no table {name!r}.", hint=f"Tables: {', '.join(TABLES)}.")
    rows: list[dict[str, Any]] = []
    left_out = 0
    for report in reports:
        if name in ("captures", "findings"):
            found = _capture(report) if name == "captures" else _findings(report)
        elif report.views is None:
            raise UsageError(f"the report was made without the views that {name} are taken from.")
        else:
            view = report.views[name]
            found = [] if view is None else _ROWS[name](view)
            left_out += _left_out(view, name)
        capture = {"run": plain(report.run), "session": plain(report.session)}
        rows += [{**dict.fromkeys(TABLES[name]), **capture, **row} for row in found]
    return Table(name, [{column: _cell(row[column]) for column in row} for row in rows], left_out)


def _cell(value: Any) -> Any:
    return plain(value) if isinstance(value, str) else value


def _capture(report: model.Report) -> list[dict[str, Any]]:
    return [
        {
            "framework": report.framework,
            "device": device_name(report),
            "rank": report.workers[report.reference_worker].rank,
            "trust": report.trust.level,
            "steps": report.overview.steps,
            "step_time_ns": report.overview.step_time_ns,
            "headline": report.headline,
        }
    ]


def _findings(report: model.Report) -> list[dict[str, Any]]:
    numbers = [
        entry.number for branch in branches_of(report) for entry in (branch.entry, *branch.refined)
    ]
    return [
        {
            **{
                name: getattr(finding, name, getattr(finding.saving, name, None))
                for name in TABLES["findings"]
                if name not in _CAPTURE
            },
            "number": number,
        }
        for number, finding in zip(numbers, report.findings, strict=True)
    ]


def _steps(view: Mapping[str, Any]) -> list[dict[str, Any]]:
    totals_ns = dict(zip(view["causes"], view["total_ns"], strict=True))
    return [
        {
            "step": step,
            "start_ns": start_ns,
            "duration_ns": duration_ns,
            **{
                column: totals_ns[cause][place] if cause in totals_ns else 0
                for cause, column in _CAUSES.items()
            },
        }
        for place, (step, start_ns, duration_ns) in enumerate(
            zip(view["index"], view["start_ns"], view["duration_ns"], strict=True)
        )
    ]


def _kernels(view: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            **{name: value for name, value in point.items() if name != "product"},
            **dict(zip(_PRODUCT, point["product"] or (), strict=False)),
        }
        for point in view["points"]
    ]


def _operators(view: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = _operator_table(view)["rows"]
    return rows


def _operator_table(view: Mapping[str, Any]) -> Mapping[str, Any]:
    table: Mapping[str, Any] = view["by_call_site"] or view["by_operator"]
    return table


_ROWS = {"steps": _steps, "kernels": _kernels, "operators": _operators}


def _left_out(view: Mapping[str, Any] | None, name: str) -> int:
    if view is None or name == "steps":
        return 0
    return int((_operator_table(view) if name == "operators" else view)["truncated"])


def as_csv(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows with a header; what is unknown is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_tables(
    reports: Sequence[model.Report], directory: Path, inputs: Sequence[Path] = ()
) -> list[Table]:
    """Write `NAME.csv` for each table, and `NAME.parquet` as well if pyarrow is installed.

    `inputs` are files that are read, and must not be replaced.

    Raises:
        UsageError: If a file cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot be made: {error.strerror}.", where=str(directory)) from error
    tables = [table_of(reports, name) for name in TABLES]
    for table in tables:
        content = as_csv(table.columns, table.rows).encode()
        write_file(directory / f"{table.name}.csv", [content], inputs)
        parquet = _parquet(table)
        if parquet is not None:
            write_file(directory / f"{table.name}.parquet", [parquet], inputs)
    return tables


def _parquet(table: Table) -> bytes | None:
    """A table in Parquet; None without pyarrow."""
    try:
        arrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        return None
    kinds = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    schema = arrow.schema([(name, kinds[kind]) for name, kind in table.columns.items()])
    content = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(table.rows, schema=schema), content)
    return content.getvalue()
