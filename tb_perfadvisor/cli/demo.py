"""`perfadvisor demo`: the tab with synthetic profiles, without recording anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from tb_perfadvisor.cli.help import Command, CountRange
from tb_perfadvisor.errors import UsageError


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
    from tb_perfadvisor.testing.synthetic import write_synthetic

    if find_spec("tensorboard") is None:
        raise UsageError("TensorBoard is not installed.", hint="pip install tensorboard")
    try:
        directory = private_directory() / "demo"
        write_synthetic(directory)
        _write_scalars(directory)
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


def _write_scalars(directory: Path) -> None:
    """Write what the runs of the GPU profiles logged."""
    from tb_perfadvisor.publish.summaries import encode_scalars
    from tb_perfadvisor.testing.synthetic import training_scalars

    for label in directory.glob("*_gpu_*/label.json"):
        step_ns = json.loads(label.read_text(encoding="utf-8"))["true_step_ns"]["median"]
        points = list(training_scalars(step_ns))
        name = f"events.out.tfevents.{points[0][1]:.0f}.demo.1.0"
        label.with_name(name).write_bytes(encode_scalars(points))
