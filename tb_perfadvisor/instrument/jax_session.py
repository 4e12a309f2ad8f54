"""Ends recordings of JAX without the JSON file that JAX writes beside each.

Converting 33 MB of events to JSON takes 40 s on a busy core, and nothing here reads it.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import jax


def stop_trace(directory: Path) -> None:
    """End the recording that `jax.profiler.start_trace` began, and write it.

    Args:
        directory: The one that was given to `start_trace`.
    """
    recorded = _stop()
    if recorded is None:
        jax.profiler.stop_trace()
        return
    # The layout that TensorBoard's profile plugin expects.
    folder = directory / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{socket.gethostname()}.xplane.pb").write_bytes(recorded)


def _stop() -> bytes | None:
    """What was recorded; None if this version of JAX cannot hand it out, and still records."""
    try:
        from jax._src import profiler

        state: Any = profiler._profile_state
        with state.lock:
            recorded = state.profile_session.stop()
            state.reset()
        return bytes(recorded)
    except (ImportError, AttributeError, TypeError):
        return None
