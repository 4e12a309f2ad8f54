"""Starts a TensorBoard for a measurement, and ends it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

_START_S = 120
WITH_PLUGINS = ("-m", "tensorboard.main")


@contextmanager
def serving(
    logs: Path,
    cache: Path,
    is_ready: Callable[[str], bool],
    program: Sequence[str] = WITH_PLUGINS,
) -> Iterator[str]:
    """The address of a TensorBoard that runs while in the context.

    Args:
        logs: The log directory.
        cache: Where our plugin keeps reports.
        is_ready: Asked with the address until it is true; may raise what `urlopen` raises.
        program: What Python runs.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [
            *(sys.executable, *program, "--logdir", str(logs)),
            *("--host", "127.0.0.1", "--port", str(port)),
        ],
        env={**os.environ, "PERFADVISOR_CACHE_DIR": str(cache)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + _START_S
        while not _asked(is_ready, address):
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit("TensorBoard does not start")
            time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.wait(30)


def _asked(is_ready: Callable[[str], bool], address: str) -> bool:
    try:
        return is_ready(address)
    except (URLError, ConnectionError):
        return False
