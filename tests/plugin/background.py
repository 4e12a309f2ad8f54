import sys
import time
from collections.abc import Callable
from pathlib import Path

FAKE_WORKER = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))


def eventually(claim: Callable[[], bool], within_s: float = 15.0) -> None:
    """Wait for something that another thread or process brings about."""
    deadline = time.monotonic() + within_s
    while not claim():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
