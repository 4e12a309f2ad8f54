"""`perfadvisor ledger`: what trials predicted and measured."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tb_perfadvisor.cli.help import PATH, Command, choice_option
from tb_perfadvisor.cli.terminal import note, printing, terminal
from tb_perfadvisor.plain_text import plain

if TYPE_CHECKING:
    from tb_perfadvisor.proof.ledger import Proof


class _LedgerFormat(str, Enum):
    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


@click.command(cls=Command)
@click.option(
    "--file",
    type=PATH,
    show_default="the ledger of this user",
    help="A ledger to show, such as one that was exported.",
)
@choice_option(_LedgerFormat, "--format", "-f", default=_LedgerFormat.TEXT, help="Output format.")
def ledger(file: Path | None, format: _LedgerFormat) -> None:
    """Show what `perfadvisor try` predicted and measured; as JSON lines, to export it.

    The ledger holds no code and no paths, and is sent nowhere.
    """
    import msgspec

    from tb_perfadvisor.proof.ledger import ledger_file, markdown_table, read, summary

    place = ledger_file() if file is None else file
    proofs = read(place)
    if not proofs:
        note(f"nothing was tried yet: {place} has no line. See `perfadvisor try --help`.")
    with printing():
        if format is _LedgerFormat.JSON:
            sys.stdout.writelines(msgspec.json.encode(proof).decode() + "\n" for proof in proofs)
        elif format is _LedgerFormat.MARKDOWN:
            sys.stdout.write("\n".join(markdown_table(proofs)) + "\n")
        elif proofs:
            _print(proofs)
            sys.stdout.write(summary(proofs) + "\n")


def _print(proofs: list[Proof]) -> None:
    from rich.table import Table
    from rich.text import Text

    from tb_perfadvisor.proof.ledger import COLUMNS, row

    table = Table("when", *COLUMNS, box=None, header_style="bold")
    for proof in proofs:
        table.add_row(_day(proof.tried_unix_s), *(Text(plain(cell)) for cell in row(proof)))
    terminal().print(table)


def _day(unix_s: int) -> str:
    try:
        return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%d")
    except (OverflowError, ValueError, OSError):  # a clock was wrong, or the file is not ours
        return "unknown"
