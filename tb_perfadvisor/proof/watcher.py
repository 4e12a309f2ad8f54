"""Waits until its standard input ends, and then ends all processes with a mark.

`perfadvisor try` starts it: when that process ends, however it does, so does the input.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from tb_perfadvisor.machine.load import processes_of


def main() -> None:
    """Wait and end."""
    mark = sys.argv[1].encode()
    sys.stdin.buffer.read()
    for process in processes_of(mark):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main()
