"""`perfadvisor tpu-shapes`: what shapes cost on a TPU, by XLA's own estimates."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click

from tb_perfadvisor.cli.help import Argument, Command, NumberRange, choice_option
from tb_perfadvisor.cli.terminal import Format, note, printing, show_progress, terminal
from tb_perfadvisor.errors import PerfAdvisorError, UsageError

if TYPE_CHECKING:
    from tb_perfadvisor.tpu_compiler.estimates import ShapeEstimates


@click.command("tpu-shapes", cls=Command)
@click.argument(
    "shapes",
    cls=Argument,
    nargs=-1,
    required=True,
    help="Operations with their sizes. Commas separate sizes to compare: "
    "product:8192x4096x128,130 or attention:4x16x512,513x64@bf16.",
)
@click.option(
    "--topology",
    multiple=True,
    default=("v5e",),
    show_default=True,
    help="A TPU generation (v4, v5e, v5p, v6e, tpu7x) or a slice of one (v5e:2x2). Can be "
    "repeated.",
)
@click.option(
    "--time-limit",
    type=NumberRange(min=1),
    default=120.0,
    show_default=True,
    help="Seconds for the compiler, for each topology.",
)
@choice_option(Format, "--format", default=Format.TEXT, help="Output format.")
def tpu_shapes(
    shapes: tuple[str, ...], topology: tuple[str, ...], time_limit: float, format: Format
) -> None:
    """Ask XLA's TPU compiler what SHAPES cost. Needs no TPU, but the extra `tpu`."""
    from tb_perfadvisor.tpu_compiler.estimates import MOST_SHAPES, estimate_shapes, parse_operations

    operations = [operation for text in shapes for operation in parse_operations(text)]
    if len(operations) > MOST_SHAPES:
        raise UsageError(f"{len(operations)} shapes are too many.", hint=f"Ask for {MOST_SHAPES}.")
    estimates: list[ShapeEstimates] = []
    with show_progress("compiling", len(topology)) as progress:
        for name in topology:
            progress.describe(f"compiling for {name}", 0)
            estimates.append(estimate_shapes(name, operations, time_limit_s=time_limit))
            progress.advance()
    for refusal in dict.fromkeys(text for found in estimates for text in found.refused):
        note(refusal)
    if not any(found.rows for found in estimates):
        raise PerfAdvisorError("no shape could be compiled.")
    with printing():
        if format is Format.JSON:
            content = [found.as_json() for found in estimates]
            sys.stdout.write(json.dumps(content, indent=2) + "\n")
        elif format is Format.MARKDOWN:
            sys.stdout.write("\n\n".join(found.as_markdown() for found in estimates) + "\n")
        else:
            _print(estimates)


def _print(estimates: Sequence[ShapeEstimates]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = terminal(highlight=False)
    for found in estimates:
        table = Table(box=None, pad_edge=False)
        for heading in found.headings:
            is_shape = heading == "Shape"
            justify: Literal["left", "right"] = "left" if is_shape else "right"
            table.add_column(heading, justify=justify, no_wrap=is_shape)
        for row in found.cells():
            table.add_row(*map(Text, row))
        console.print(Text(found.title), style="bold", soft_wrap=True)
        console.print(table)
        console.print()
