"""Writes files so that a failure leaves the old ones, and never over a file that is read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tb_perfadvisor.errors import UsageError


def refuse_inputs(target: Path, inputs: Iterable[Path]) -> None:
    """Refuse to write to a file that is read, whatever names and links lead to it.

    Inputs are not looked at if the target does not exist.

    Raises:
        UsageError: If it is one of them.
    """
    with suppress(OSError, ValueError):
        written = target.stat()
        for path in inputs:
            with suppress(OSError, ValueError):
                if os.path.samestat(path.stat(), written):
                    raise UsageError(
                        "is one of the files that are read, and would be lost.",
                        where=str(target),
                        hint="Choose another name.",
                    )


def write_file(target: Path, pieces: Iterable[bytes], inputs: Iterable[Path] = ()) -> None:
    """Write the output of a command: a whole file, or none.

    A full disk or an interrupt leaves the old file. A link keeps leading to the file that it names,
    and a device or a pipe is written to.

    Inputs are the files that are read.

    Raises:
        UsageError: If it is one of the inputs, or cannot be written.
    """
    refuse_inputs(target, inputs)
    try:
        if target.exists() and not target.is_file():
            with target.open("wb") as device:
                device.writelines(pieces)
        else:
            replace_file(Path(os.path.realpath(target)), pieces)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(f"cannot be written: {reason}.", where=str(target)) from error


def replace_file(target: Path, pieces: Iterable[bytes]) -> None:
    """Write a file beside its target, and rename it when it is complete.

    A link is replaced, not followed.

    Raises:
        OSError: If it cannot be written. The old file is as it was.
    """
    partial = target.with_name(f".{os.urandom(8).hex()}.partial")
    try:
        with partial.open("xb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())  # some file systems notice only now that they are full
        with suppress(FileNotFoundError):
            shutil.copymode(target, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
