"""Estimated times of shapes for one generation of TPUs, as a table."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Sequence
from itertools import product
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.advice import change
from tb_perfadvisor.contract.model import FindingInfo, TableColumn, TableEvidence
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.tpu_compiler.compiler import (
    CompiledProgram,
    Operation,
    Refused,
    compile_for_tpu,
)
from tb_perfadvisor.tpu_compiler.generations import Generation, find_generation
from tb_perfadvisor.tpu_compiler.worker import OPERATIONS
from tb_perfadvisor.units import format_duration

MOST_SHAPES = 64
"""More would take minutes, and say no more."""
_DTYPES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "s8": "int8",
    "f8": "float8_e4m3fn",
}
_PATTERN = regex(r"(?:([\w-]+):)?([\dx,]+)(?:@(\w+))?")


def parse_operations(text: str) -> list[Operation]:
    """The operations that a text describes.

    The text is `KIND:SIZExSIZE…@DTYPE`. The kind may be left out (then it is a product), and so may
    the data type (then it is bf16). Commas separate alternatives for a size.
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{text!r} is no shape.",
            hint="Write KIND:SIZExSIZE…, for example product:8192x4096x128,130.",
        )
    kind, dtype = match[1] or "product", match[3] or "bf16"
    if kind not in OPERATIONS:
        raise UsageError(
            f"there is no operation called {kind!r}.", hint=f"Known: {', '.join(OPERATIONS)}."
        )
    if dtype not in _DTYPES:
        raise UsageError(
            f"there is no data type called {dtype!r}.", hint=f"Known: {', '.join(_DTYPES)}."
        )
    try:
        sizes = [tuple(int(size) for size in part.split(",")) for part in match[2].split("x")]
    except ValueError:
        sizes = []
    names = size_names(kind)
    if not sizes or any(size < 1 for part in sizes for size in part):
        raise UsageError(f"the sizes of {text!r} are no positive numbers.")
    if names and len(sizes) != len(names):
        raise UsageError(
            f"{kind} has {len(names)} sizes, and {text!r} has {len(sizes)}.",
            hint=f"They are {', '.join(names)}.",
        )
    return [Operation(kind, chosen, _DTYPES[dtype]) for chosen in product(*sizes)]


def size_names(kind: str) -> tuple[str, ...]:
    """What the sizes of an operation are called; empty if it takes any number of dimensions."""
    parameters = inspect.signature(OPERATIONS[kind]).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return ()
    return tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)


class ShapeEstimate(Struct, frozen=True):
    """What the compiler estimates for one shape."""

    shape: str
    cycles: float
    time_ns: float
    flop: float
    hbm_bytes: int
    kernels: tuple[tuple[str, float], ...]
    """Name and cycles of each."""


class ShapeEstimates(Struct, frozen=True):
    """What the compiler estimates for several shapes, on one generation of TPUs."""

    generation: str
    libtpu: str
    rows: tuple[ShapeEstimate, ...]
    refused: tuple[str, ...]
    """Shapes that could not be compiled, with the reason."""

    headings = ("Shape", "Estimated time", "Against the first", "Cycles", "FLOP", "HBM traffic")

    @property
    def title(self) -> str:
        """What the table shows."""
        return (
            f"TPU {self.generation}, estimated by XLA (libtpu {self.libtpu}). "
            "Estimates of the compiler, not measurements."
        )

    def cells(self) -> list[tuple[str, ...]]:
        """The table's rows as texts."""
        first = self.rows[0].time_ns if self.rows else 0.0
        return [
            (
                row.shape,
                format_duration(round(row.time_ns)),
                f"{row.time_ns / first - 1:+.1%}" if first else "",
                f"{row.cycles:,.0f}",
                f"{row.flop:.3g}",
                f"{row.hbm_bytes / 1e6:,.1f} MB",
            )
            for row in self.rows
        ]

    def as_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "generation": self.generation,
            "libtpu": self.libtpu,
            "basis": "estimates of the compiler, not measurements",
            "shapes": [
                {
                    "shape": row.shape,
                    "time_ns": row.time_ns,
                    "cycles": row.cycles,
                    "flop": row.flop,
                    "hbm_bytes": row.hbm_bytes,
                    "kernels": [{"name": name, "cycles": cycles} for name, cycles in row.kernels],
                }
                for row in self.rows
            ],
            "refused": list(self.refused),
        }

    def as_markdown(self) -> str:
        """A Markdown table below its title."""
        lines = [f"**{self.title}**", "", f"| {' | '.join(self.headings)} |"]
        lines.append("|---" * len(self.headings) + "|")
        lines += [f"| {' | '.join(row)} |" for row in self.cells()]
        return "\n".join(lines)


def estimate_shapes(
    topology: str, operations: Sequence[Operation], *, time_limit_s: float
) -> ShapeEstimates:
    """Ask the compiler for the times of operations, each compiled by itself.

    The topology is a generation (`v5e`), or a slice of one (`v5e:2x2`). The time limit is for all
    of them.
    """
    name, colon, _ = topology.partition(":")
    generation = find_generation(name)
    programs = compile_for_tpu(
        generation, operations, time_limit_s=time_limit_s, topology=topology if colon else ""
    )
    rows, refused, libtpu = [], [], ""
    for operation, program in zip(operations, programs, strict=True):
        if isinstance(program, Refused):
            refused.append(f"{operation} on {topology}: {program.reason}")
        else:
            rows.append(_row(operation, program, generation))
            libtpu = program.libtpu
    return ShapeEstimates(generation.name, libtpu, tuple(rows), tuple(refused))


def _row(operation: Operation, program: CompiledProgram, generation: Generation) -> ShapeEstimate:
    kernels = program.kernels
    return ShapeEstimate(
        shape=str(operation),
        cycles=program.cycles,
        time_ns=program.cycles / generation.clock_hz * 1e9,
        flop=sum(kernel.flop * kernel.runs for kernel in kernels),
        hbm_bytes=sum(kernel.hbm_bytes * kernel.runs for kernel in kernels),
        kernels=tuple((kernel.name, kernel.cycles * kernel.runs) for kernel in kernels),
    )


_COMMAND = ["perfadvisor", "tpu-shapes"]


def with_answers(report: Report, *, time_limit_s: float) -> Report:
    """The report, with what the TPU compiler says of the sizes that its findings propose.

    The time limit is for each question.
    """
    return replace(
        report, findings=[_answered(finding, time_limit_s) for finding in report.findings]
    )


def _answered(finding: FindingInfo, time_limit_s: float) -> FindingInfo:
    question = _question(finding)
    if question is None:
        return finding
    shapes, topology = question
    estimates = estimate_shapes(topology, parse_operations(shapes), time_limit_s=time_limit_s)
    if len(estimates.rows) < 2:
        return finding
    now, then = (row.time_ns for row in estimates.rows[:2])
    change = f"{abs(then / now - 1):.1%}".replace("%", " %") + (" less" if then < now else " more")
    return replace(
        finding,
        summary=f"{finding.summary} Asked for {estimates.rows[1].shape}, XLA's compiler estimates"
        f" {change} time.",
        evidence=[*finding.evidence, _table(estimates)],
    )


def _question(finding: FindingInfo) -> tuple[str, str] | None:
    """Shapes and topology of the command that a remedy shows; None if it shows none."""
    for remedy in finding.remedies:
        words = shlex.split(remedy.snippet) if remedy.language == "bash" else []
        is_example = remedy.snippet == change("ask-tpu-compiler").values["question"]
        if words[:2] == _COMMAND and not is_example and len(words) == 5:
            return words[2], words[4]
    return None


def _table(estimates: ShapeEstimates) -> TableEvidence:
    return TableEvidence(
        title=estimates.title,
        columns=[
            TableColumn(key="shape", label="Shape", unit=""),
            TableColumn(key="time_ns", label="Estimated time", unit="ns"),
            TableColumn(key="cycles", label="Cycles", unit="count"),
            TableColumn(key="hbm_bytes", label="Memory traffic", unit="bytes"),
        ],
        rows=[
            [row.shape, round(row.time_ns), round(row.cycles), row.hbm_bytes]
            for row in estimates.rows
        ],
        truncated=0,
    )
