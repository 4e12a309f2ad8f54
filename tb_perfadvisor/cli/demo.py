"""`perfadvisor demo`: the tab on profiles that need no recording."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import click

from tb_perfadvisor.cli.help import Command
from tb_perfadvisor.errors import UsageError


@click.command(cls=Command)
@click.option(
    "--port",
    type=click.IntRange(min=0, max=65_535),
    default=6006,
    show_default=True,
    help="Where TensorBoard answers, on this machine alone; 0 for any that is free.",
)
def demo(port: int) -> None:
    """Open TensorBoard on small made-up profiles, slow ones and fixed ones."""
    from tb_perfadvisor.ingest.files.bounded_directory import default_directory
    from tb_perfadvisor.testing.synthetic import write_synthetic

    if find_spec("tensorboard") is None:
        raise UsageError("TensorBoard is not installed here.", hint="pip install tensorboard")
    directory = default_directory() / "demo"
    try:
        write_synthetic(directory)
    except OSError as error:
        raise UsageError(
            f"cannot be written: {error.strerror}.",
            where=str(directory),
            hint="Set PERFADVISOR_CACHE_DIR to a directory that can be.",
        ) from error
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(directory)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    if os.name == "posix":
        os.execv(command[0], command)  # signals and the exit status are TensorBoard's own
    sys.exit(subprocess.call(command))
