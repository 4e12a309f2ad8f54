"""Virtual environments with pinned tools that we compare with, or fit models to."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import platformdirs


def default_folder(pins: Path) -> Path:
    """Where an environment is kept between runs."""
    return Path(platformdirs.user_cache_dir("tb_perfadvisor-benchmarks")) / pins.stem


def python_with_tools(folder: Path, pins: Path) -> Path:
    """The interpreter of an environment with pinned tools, which is created if necessary.

    Args:
        folder: Where to create it.
        pins: A requirements file.

    Raises:
        SystemExit: If the tools cannot be installed.
    """
    python = folder / "bin" / "python"
    mark = folder / "installed.sha256"
    wanted = hashlib.sha256(pins.read_bytes()).hexdigest()
    if mark.exists() and mark.read_text() == wanted:
        return python
    print(f"installing {pins.name} into {folder} …", file=sys.stderr)
    try:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--requirement", str(pins)]
        subprocess.run(pip, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"{pins.name} cannot be installed: {error}")
    mark.write_text(wanted)
    return python
