"""What is installed here, and what of it is known to spoil TensorBoard or profiles.

Packages are looked at from outside: a broken one must not break the one who looks.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path

from tb_perfadvisor.trace import Note

_NVIDIA = Path("/proc/driver/nvidia/params")
_TOOLKITS = Path("/usr/local")
# Of each CUDA toolkit; the loader does not look here.
_CUPTI_ASIDE = "cuda*/extras/CUPTI/lib64"
_IMPORT_S = 60


def environment_notes(nvidia: Path = _NVIDIA) -> list[Note]:
    """What is wrong with this environment, and how to mend it.

    Args:
        nvidia: The parameters of NVIDIA's driver, where there is one.
    """
    return [*_tensorboard(), *profile_plugin_notes(), *recording_notes(nvidia)]


def recording_notes(nvidia: Path = _NVIDIA) -> list[Note]:
    """Why profiles that are recorded here may lack the device's events."""
    return [*_profiling(nvidia), *_cupti(nvidia)]


def installed(name: str) -> str | None:
    """A package's version; None where it is missing."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _tensorboard() -> list[Note]:
    tensorboard, setuptools = installed("tensorboard"), installed("setuptools")
    if tensorboard is None:
        message = "TensorBoard is not installed here: TensorFlow 2.21 and XProf bring none along."
        return [Note("tensorboard-missing", "error", message, "pip install tensorboard")]
    if _release(tensorboard) < (2, 21) and (setuptools is None or _release(setuptools) >= (82,)):
        having = f"setuptools {setuptools}" if setuptools else "no setuptools"
        return [
            Note(
                "pkg-resources-missing",
                "error",
                f"TensorBoard {tensorboard} cannot start with {having}: it imports "
                "pkg_resources, which setuptools 82 has dropped.",
                "pip install 'tensorboard>=2.21', or 'setuptools<82'.",
            )
        ]
    problem = _import_problem("tensorboard.program")
    if problem:
        message = f"TensorBoard {tensorboard} cannot be imported: {problem}"
        remedy = "pip install --force-reinstall tensorboard protobuf"
        return [Note("tensorboard-broken", "error", message, remedy)]
    if _plugin("perf_advisor") is None:
        message = "TensorBoard does not know the Perf Advisor tab: this package is not installed."
        remedy = "pip install tb_perfadvisor, into the environment of TensorBoard."
        return [Note("plugin-unknown", "warning", message, remedy)]
    return []


def profile_plugin_notes(*, is_loaded: bool | None = None) -> list[Note]:
    """Why there is no Profile tab, or nothing in it.

    Args:
        is_loaded: Whether the TensorBoard that runs has it; None where none is asked.
    """
    plugin = _plugin("profile")
    if plugin is None:
        message = "The Profile tab is not installed. The Perf Advisor tab works without it."
        return [Note("profile-missing", "info", message, "pip install tensorboard-plugin-profile")]
    if is_loaded is False:
        problem = _import_problem(plugin) or "TensorBoard's log says why."
        message = f"The Profile tab is installed and could not be loaded: {problem}"
        remedy = "pip install --force-reinstall tensorboard-plugin-profile"
        return [Note("profile-broken", "warning", message, remedy)]
    if installed("xprof") is None:
        return []
    problem = _import_problem("xprof.convert.raw_to_tool_data")
    if not problem:
        return []
    message = f"The Profile tab shows no tools, for XProf's converters are broken: {problem}"
    return [Note("xprof-broken", "warning", message, "pip install --force-reinstall xprof")]


def _profiling(nvidia: Path) -> list[Note]:
    """Whether the driver lets everybody observe the device."""
    try:
        parameters = nvidia.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []  # no driver of NVIDIA's, or none to be seen from here
    if re.search(r"^RmProfilingAdminOnly:\s*1", parameters, re.MULTILINE):
        return [
            Note(
                "profiling-restricted",
                "warning",
                "NVIDIA's driver lets administrators alone profile: what others record here has "
                "no kernels in it.",
                "Load the driver with NVreg_RestrictProfilingToAdminUsers=0, or run the job with "
                "CAP_SYS_ADMIN.",
            )
        ]
    return []


def _cupti(nvidia: Path, toolkits: Path = _TOOLKITS) -> list[Note]:
    """Whether what records a GPU's kernels can be loaded."""
    if not nvidia.exists() or any(_holds_cupti(one) for one in _library_directories()):
        return []
    what = "What TensorFlow and JAX record here has no kernels in it, nor may PyTorch's"
    aside = sorted(path for path in toolkits.glob(_CUPTI_ASIDE) if _holds_cupti(path))
    if aside:
        message = f"{what}: libcupti is in {aside[-1]} alone, where nobody looks."
        remedy = f"export LD_LIBRARY_PATH={aside[-1]}:$LD_LIBRARY_PATH"
        return [Note("cupti-aside", "warning", message, remedy)]
    message = f"{what}: there is no libcupti, through which NVIDIA's GPUs are observed."
    remedy = "pip install nvidia-cuda-cupti-cu12 (or -cu13), as the driver's CUDA has it."
    return [Note("cupti-missing", "warning", message, remedy)]


def _library_directories() -> list[Path]:
    """Where the loader and the frameworks look for libcupti."""
    found = [Path(one) for one in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if one]
    found += [Path(one) for one in ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/lib/wsl/lib")]
    found += Path("/usr/lib").glob("*-linux-gnu")
    for package in map(Path, sys.path):
        found += package.glob("nvidia/*/lib")
        found.append(package / "torch" / "lib")
    return found


def _holds_cupti(directory: Path) -> bool:
    return any(directory.glob("libcupti*.so*"))


def _plugin(name: str) -> str | None:
    """The module of one of TensorBoard's plugins; None where it is not installed."""
    plugins = entry_points(group="tensorboard_plugins")
    return next((one.module for one in plugins if one.name == name), None)


@cache
def _import_problem(module: str) -> str:
    """Why a module cannot be imported; empty when it can."""
    if find_spec(module.partition(".")[0]) is None:
        return f"there is no module {module.partition('.')[0]}."
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            capture_output=True, text=True, errors="replace", timeout=_IMPORT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"its import takes more than {_IMPORT_S} s."
    lines = done.stderr.strip().splitlines()
    return (lines[-1] if lines else f"it ended with {done.returncode}") if done.returncode else ""


def _release(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()
