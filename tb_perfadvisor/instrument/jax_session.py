"""Begins and ends recordings of JAX.

A recording begins only where JAX's profiler works. A libtpu that does not fit JAX ends the process
with a segmentation fault when the profiler starts, whether the machine has a TPU or not.

It ends without the JSON file that JAX writes beside each: converting 33 MB of events takes 40 s on
a busy core, and nothing here reads it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any, Final

import jax

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.units import format_exit_status

_TRIAL: Final = """
import json, resource, sys
sys.path[:] = json.loads(sys.argv[1])
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
import jax
from jax._src import cloud_tpu_init
from jax._src.lib import _profiler, xla_client
library = cloud_tpu_init.get_tpu_library_path()
_profiler.register_plugin_profiler(xla_client.load_pjrt_plugin_dynamically("tpu", library))
options = jax.profiler.ProfileOptions()
options.host_tracer_level = options.python_tracer_level = options.device_tracer_level = 0
_profiler.ProfilerSession(options).stop()
"""
"""Starts the profiler as JAX does once it has loaded libtpu, and touches no device."""
_TRIAL_LIMIT_S: Final = 120.0


def start_trace(directory: Path, *, is_rich: bool) -> None:
    """Begin a recording.

    Raises:
        PerfAdvisorError: If the profiler would end this process.
    """
    require_working_profiler()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = int(is_rich)
    jax.profiler.start_trace(str(directory), profiler_options=options)


@cache
def require_working_profiler() -> None:
    """Try the profiler in another process, if this one has loaded libtpu.

    Raises:
        PerfAdvisorError: If the profiler would end this process.
    """
    backend = jax.default_backend()  # loads libtpu, if JAX is going to
    if not _has_loaded_libtpu():
        return
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        # This process may hold the library's lock.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        # The trial is no part of the program that is recorded.
        "PERFADVISOR_RUN": "",
    }
    try:
        status = subprocess.run(
            [sys.executable, "-c", _TRIAL, json.dumps(sys.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=_TRIAL_LIMIT_S,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        raise PerfAdvisorError(
            f"JAX's profiler did not start within {_TRIAL_LIMIT_S:.0f} s in another process.",
            hint=_remedy(backend),
        ) from None
    # Another status says that this version of JAX cannot be asked, not that its profiler fails.
    if status < 0:
        raise PerfAdvisorError(
            f"JAX's profiler would end the program with {format_exit_status(status)}, because "
            f"the installed libtpu does not fit JAX {jax.__version__}.",
            hint=_remedy(backend),
        )


def _has_loaded_libtpu() -> bool:
    try:
        from jax._src.lib import xla_client

        return bool(xla_client.pjrt_plugin_loaded("tpu"))
    except (ImportError, AttributeError):
        return False


def _remedy(backend: str) -> str:
    install = f"Run pip install 'jax[tpu]=={jax.__version__}'"
    return f"{install}." if backend == "tpu" else f"{install}, or set JAX_PLATFORMS={backend}."


def stop_trace(directory: Path) -> None:
    """End the recording that `start_trace` began, and write it."""
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
