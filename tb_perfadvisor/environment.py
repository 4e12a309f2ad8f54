"""Finds problems of the environment that break TensorBoard or profiling.

Packages are imported in a subprocess, so that a broken one does not break the check.
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

from tb_perfadvisor.ingest.files.containment import NotPrivateError, private_directory
from tb_perfadvisor.note import Note
from tb_perfadvisor.plain_text import shell_path

_NVIDIA_PARAMETERS = Path("/proc/driver/nvidia/params")
_TOOLKITS = Path("/usr/local")
# Part of each CUDA toolkit, but not on the loader's search path.
_TOOLKIT_CUPTI = "cuda*/extras/CUPTI/lib64"
_IMPORT_TIMEOUT_S = 60


def environment_notes(nvidia: Path = _NVIDIA_PARAMETERS) -> list[Note]:
    """Problems of this environment, each with a remedy.

    The parameter file of NVIDIA's driver need not exist.
    """
    return [*_cache(), *_tensorboard(), *profile_plugin_notes(), *recording_notes(nvidia)]


def _cache() -> list[Note]:
    try:
        private_directory()
    except NotPrivateError as error:
        message = f"The cache directory is not used: {error.strerror}."
        return [Note("cache-not-private", "warning", message, error.hint)]
    except OSError:
        pass  # nothing is kept, as in a container without a home directory
    return []


def recording_notes(nvidia: Path = _NVIDIA_PARAMETERS) -> list[Note]:
    """Reasons why profiles recorded here may have no device events."""
    return [*_profiling(nvidia), *_cupti(nvidia)]


def installed(name: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _tensorboard() -> list[Note]:
    tensorboard, setuptools = installed("tensorboard"), installed("setuptools")
    if tensorboard is None:
        message = (
            "TensorBoard is not installed. TensorFlow 2.21 and XProf do not install it either."
        )
        return [Note("tensorboard-missing", "error", message, "pip install tensorboard")]
    if _release(tensorboard) < (2, 21) and (setuptools is None or _release(setuptools) >= (82,)):
        present = f"setuptools {setuptools}" if setuptools else "no setuptools"
        return [
            Note(
                "pkg-resources-missing",
                "error",
                f"TensorBoard {tensorboard} cannot start with {present}: it imports "
                "pkg_resources, which setuptools 82 removed.",
                "pip install 'tensorboard>=2.21', or 'setuptools<82'.",
            )
        ]
    problem = _import_problem("tensorboard.program")
    if problem:
        message = f"TensorBoard {tensorboard} cannot be imported: {problem}"
        remedy = "pip install --force-reinstall tensorboard protobuf"
        return [Note("tensorboard-broken", "error", message, remedy)]
    if _plugin("perf_advisor") is None:
        message = "TensorBoard has no Perf Advisor tab, because tb_perfadvisor is not installed."
        remedy = "Install tb_perfadvisor into the environment of TensorBoard."
        return [Note("plugin-unknown", "warning", message, remedy)]
    return []


def profile_plugin_notes(*, is_loaded: bool | None = None) -> list[Note]:
    """Reasons why the Profile tab is missing or empty.

    `is_loaded` tells whether a running TensorBoard has loaded the tab; None if unknown.
    """
    plugin = _plugin("profile")
    if plugin is None:
        message = "The Profile tab is not installed. The Perf Advisor tab works without it."
        return [Note("profile-missing", "info", message, "pip install tensorboard-plugin-profile")]
    if is_loaded is False:
        problem = _import_problem(plugin) or "see TensorBoard's log."
        message = f"The Profile tab is installed but could not be loaded: {problem}"
        remedy = "pip install --force-reinstall tensorboard-plugin-profile"
        return [Note("profile-broken", "warning", message, remedy)]
    if installed("xprof") is None:
        return []
    problem = _import_problem("xprof.convert.raw_to_tool_data")
    if not problem:
        return []
    message = f"The Profile tab shows no tools, because XProf's converters are broken: {problem}"
    return [Note("xprof-broken", "warning", message, "pip install --force-reinstall xprof")]


def _profiling(nvidia: Path) -> list[Note]:
    """A note if only administrators may profile."""
    try:
        parameters = nvidia.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []  # no NVIDIA driver, or not visible from here
    if re.search(r"^RmProfilingAdminOnly:\s*1", parameters, re.MULTILINE):
        return [
            Note(
                "profiling-restricted",
                "warning",
                "NVIDIA's driver allows only administrators to profile. Profiles that other users "
                "record here contain no kernels.",
                "Load the driver with NVreg_RestrictProfilingToAdminUsers=0, or run the job with "
                "CAP_SYS_ADMIN.",
            )
        ]
    return []


def _cupti(nvidia: Path, toolkits: Path = _TOOLKITS) -> list[Note]:
    """A note if libcupti, which records GPU kernels, cannot be loaded."""
    if not nvidia.exists() or any(_has_cupti(directory) for directory in _library_directories()):
        return []
    effect = "Profiles that TensorFlow, JAX and possibly PyTorch record here contain no kernels"
    toolkit_directories = sorted(path for path in toolkits.glob(_TOOLKIT_CUPTI) if _has_cupti(path))
    if toolkit_directories:
        directory = toolkit_directories[-1]
        message = f"{effect}: libcupti is only in {directory}, which is not on the search path."
        remedy = f"export LD_LIBRARY_PATH={shell_path(str(directory))}:$LD_LIBRARY_PATH"
        return [Note("cupti-aside", "warning", message, remedy)]
    message = f"{effect}: libcupti, which records NVIDIA GPUs, was not found."
    remedy = "pip install nvidia-cuda-cupti-cu12 or -cu13, matching the CUDA version of the driver."
    return [Note("cupti-missing", "warning", message, remedy)]


def _library_directories() -> list[Path]:
    """The directories that the loader and the frameworks search for libcupti."""
    search_path = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    directories = [Path(entry) for entry in search_path if entry]
    directories += map(Path, ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/lib/wsl/lib"))
    directories += Path("/usr/lib").glob("*-linux-gnu")
    for packages in map(Path, sys.path):
        directories += packages.glob("nvidia/*/lib")
        directories.append(packages / "torch" / "lib")
    return directories


def _has_cupti(directory: Path) -> bool:
    return any(directory.glob("libcupti*.so*"))


def _plugin(name: str) -> str | None:
    """The module of a TensorBoard plugin; None if it is not installed."""
    plugins = entry_points(group="tensorboard_plugins")
    return next((plugin.module for plugin in plugins if plugin.name == name), None)


@cache
def _import_problem(module: str) -> str:
    """Why a module cannot be imported; empty if it can."""
    if find_spec(module.partition(".")[0]) is None:
        return f"there is no module {module.partition('.')[0]}."
    try:
        process = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_IMPORT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"its import takes more than {_IMPORT_TIMEOUT_S} s."
    lines = process.stderr.strip().splitlines()
    if process.returncode == 0:
        return ""
    return lines[-1] if lines else f"the import exited with status {process.returncode}"


def _release(text: str) -> tuple[int, ...]:
    """The leading numbers of a version."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()
