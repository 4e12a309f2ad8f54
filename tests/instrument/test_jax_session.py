"""How recordings of JAX begin and end, by stand-ins for its modules."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.command import ROOT

Stop = Callable[[Path], None]

# A JAX that has loaded libtpu. Its profiler does in another process what the test says.
LOADED = {
    "jax/__init__.py": """
        from types import SimpleNamespace
        __version__ = "0.10.2"
        def start_trace(directory, profiler_options):
            assert profiler_options.python_tracer_level == 0
        profiler = SimpleNamespace(ProfileOptions=SimpleNamespace, start_trace=start_trace)
        def default_backend():
            return BACKEND
        """,
    "jax/_src/__init__.py": "",
    "jax/_src/cloud_tpu_init.py": """
        def get_tpu_library_path():
            return "libtpu.so"
        """,
    "jax/_src/lib.py": """
        import os
        class xla_client:
            pjrt_plugin_loaded = staticmethod(lambda name: name == "tpu")
            load_pjrt_plugin_dynamically = staticmethod(lambda name, path: (name, path))
        class _profiler:
            def register_plugin_profiler(plugin):
                assert plugin == ("tpu", "libtpu.so")
            class ProfilerSession:
                def __init__(self, options):
                    assert options.device_tracer_level == 0
                    assert os.environ["JAX_PLATFORMS"] == "cpu"
                    ENDS
                def stop(self):
                    return b""
        """,
}
RECORD = """
from pathlib import Path
from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.instrument.jax_session import start_trace
try:
    start_trace(Path("out"), is_rich=False)
    print("started")
except PerfAdvisorError as error:
    print(error)
"""


def recorded(folder: Path, ends: str, backend: str = "cpu") -> str:
    """The last line of a program that records, with a JAX that has loaded libtpu."""
    for name, text in LOADED.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = text.replace("ENDS", ends).replace("BACKEND", repr(backend))
        path.write_text(dedent(text))
    done = subprocess.run(
        [sys.executable, "-c", RECORD],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("backend", "remedy"),
    [
        ("cpu", "Run pip install 'jax[tpu]==0.10.2', or set JAX_PLATFORMS=cpu."),
        ("tpu", "Run pip install 'jax[tpu]==0.10.2'."),
    ],
)
def test_a_profiler_that_would_end_the_program_is_not_started(
    backend: str, remedy: str, tmp_path: Path
) -> None:
    said = recorded(tmp_path, "os.kill(os.getpid(), 11)", backend)
    assert said == (
        "JAX's profiler would end the program with signal 11 (SIGSEGV), because the installed "
        f"libtpu does not fit JAX 0.10.2. {remedy}"
    )


@pytest.mark.parametrize("ends", ["pass", "raise AttributeError"])
def test_a_profiler_that_works_or_cannot_be_asked_is_started(ends: str, tmp_path: Path) -> None:
    assert recorded(tmp_path, ends) == "started"


def stop_trace(monkeypatch: pytest.MonkeyPatch, state: Any, called: list[str]) -> Stop:
    """The function, of a JAX whose recording is under way."""
    jax, internal, profiler = (ModuleType(n) for n in ("jax", "jax._src", "jax._src.profiler"))
    jax.profiler = SimpleNamespace(stop_trace=lambda: called.append("stop_trace"))  # type: ignore[attr-defined]
    internal.profiler = profiler  # type: ignore[attr-defined]
    profiler._profile_state = state  # type: ignore[attr-defined]
    for module in (jax, internal, profiler):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    name = "tb_perfadvisor.instrument.jax_session"
    monkeypatch.delitem(sys.modules, name, raising=False)
    module = __import__(name, fromlist=["stop_trace"])
    monkeypatch.setitem(sys.modules, name, module)
    found: Stop = module.stop_trace
    return found


def test_only_the_profile_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    called: list[str] = []
    state = SimpleNamespace(
        lock=threading.Lock(),
        profile_session=SimpleNamespace(stop=lambda: b"profile"),
        reset=lambda: called.append("reset"),
    )
    stop_trace(monkeypatch, state, called)(tmp_path)
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert file.read_bytes() == b"profile"
    assert file.relative_to(tmp_path).parts[:2] == ("plugins", "profile")
    assert file.name.endswith(".xplane.pb")
    assert called == ["reset"]


def test_other_versions_of_jax_write_it_themselves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called: list[str] = []
    state = SimpleNamespace(lock=threading.Lock(), profile_session=SimpleNamespace())
    stop_trace(monkeypatch, state, called)(tmp_path)
    assert called == ["stop_trace"]
    assert list(tmp_path.iterdir()) == []
