"""`perfadvisor anonymize`: a copy of a profile for a bug report."""

from __future__ import annotations

from pathlib import Path

import click

from tb_perfadvisor.cli.help import PATH, Argument, Command
from tb_perfadvisor.cli.terminal import note


@click.command(cls=Command)
@click.argument("file", cls=Argument, type=PATH, help="A .json, .json.gz or .xplane.pb profile.")
@click.argument("out", cls=Argument, type=PATH, help="The copy to write.")
@click.option(
    "--key", default="", help="Use the same text for all ranks of a run, so that names match."
)
def anonymize(file: Path, out: Path, key: str) -> None:
    """Write a copy of a profile for a bug report, without the names of your program.

    Names of frameworks, runtimes, library kernels and markers stay. Names of modules, functions,
    files, your own kernels, annotations, hosts and jobs are hashed; other texts are removed. Times
    stay the same, and so do the findings.
    """
    from tb_perfadvisor.ingest.anonymize.files import anonymize_file

    kept = anonymize_file(file, out, key=key)
    note(f"wrote {out}; check that nothing in it is confidential before you share it.")
    if kept:
        words = f"{len(kept)} words that are" if len(kept) > 1 else "1 word that is"
        note(f"kept {words} in no framework's vocabulary: {', '.join(kept)}.")
    else:
        note("kept no word that is in no framework's vocabulary.")
