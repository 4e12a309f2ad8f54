"""Lines of JSON in the user's data directory, which several processes may add to."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from tb_perfadvisor.errors import UsageError

DIRECTORY_VARIABLE: Final = "PERFADVISOR_DATA_DIR"
_MOST_BYTES: Final = 64 << 20


def data_file(name: str) -> Path:
    """Where a file of the user's data lies; it may not exist yet.

    Raises:
        RuntimeError: If there is no home directory.
    """
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        import platformdirs

        directory = platformdirs.user_data_dir("tb_perfadvisor", appauthor=False)
    return Path(directory, name).expanduser()


def append_lines(lines: bytes, file: Path) -> None:
    """Add lines to the end of a file that only the user may read.

    Raises:
        UsageError: If it cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size_bytes = os.fstat(descriptor).st_size
            if size_bytes:
                os.lseek(descriptor, size_bytes - 1, os.SEEK_SET)
                if os.read(descriptor, 1) != b"\n":  # a full disk cut off the last line
                    lines = b"\n" + lines
            # One write to the end of a file: two commands at a time do not mix their lines.
            if os.write(descriptor, lines) < len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}.", where=str(file)) from error


def read_lines(file: Path) -> list[bytes]:
    """The lines of a file, the oldest first; none if it does not exist.

    Raises:
        UsageError: If it exists and cannot be read.
    """
    try:
        with file.open("rb") as stream:
            return stream.read(_MOST_BYTES).splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}.", where=str(file)) from error
