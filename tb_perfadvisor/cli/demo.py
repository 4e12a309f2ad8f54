"""`perfadvisor demo`: the tab with synthetic profiles, without recording anything."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import click

from tb_perfadvisor.cli.help import Command, CountRange
from tb_perfadvisor.errors import UsageError

_PROFILES = Path(__file__).with_name("demo.zip")


@click.command(cls=Command)
@click.option(
    "--port",
    type=CountRange(min=0, max=65_535),
    default=6006,
    show_default=True,
    help="Port of TensorBoard, which is reachable from this machine only. 0 picks a free one.",
)
def demo(port: int) -> None:
    """Start TensorBoard with small synthetic profiles of slow programs and their fixes.

    The GPU programs also logged scalars, for the page Training.
    """
    from tb_perfadvisor.ingest.files.containment import private_directory

    if find_spec("tensorboard") is None:
        raise UsageError("TensorBoard is not installed.", hint="pip install tensorboard")
    try:
        directory = private_directory() / "demo"
        with ZipFile(_PROFILES) as archive:
            archive.extractall(directory)
    except OSError as error:
        raise UsageError(
            f"cannot be written: {error.strerror}.",
            where=str(error.filename or "the cache directory"),
            hint="Set PERFADVISOR_CACHE_DIR to a directory that only you can write to.",
        ) from error
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(directory)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    if os.name == "posix":
        # So that signals reach TensorBoard, and its exit status reaches the shell.
        os.execv(command[0], command)
    sys.exit(subprocess.call(command))
