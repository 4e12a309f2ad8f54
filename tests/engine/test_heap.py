from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Arrays of three megabytes, one after the other, as columns are; all smaller ones aside.
SCRIPT = """
import resource
import numpy as np
from tb_perfadvisor.execution.heap import keep_freed_memory
np.ones(400_000)
DO
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    first, second = np.ones(400_000), np.ones(400_000)
    del first, second
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(do: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("DO", do)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")
def test_columns_are_made_where_others_were() -> None:
    # Two columns are 1,563 pages of 4 kB; they need not be cleared fifty times.
    assert faults("keep_freed_memory()") < 2 * 1_600


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")
def test_columns_of_any_size_are_kept() -> None:
    # 40 MB, more than the C library lets a program ask to have on its heap by size.
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import pathlib\n"
            "import numpy as np\n"
            "from tb_perfadvisor.execution.heap import keep_freed_memory\n"
            "keep_freed_memory()\n"
            "column = np.ones(5_000_000)\n"
            "maps = pathlib.Path('/proc/self/maps').read_text().splitlines()\n"
            "places = [line.split()[0].split('-') for line in maps if line.endswith('[heap]')]\n"
            "inside = [int(a, 16) <= column.ctypes.data < int(b, 16) for a, b in places]\n"
            "print(any(inside))",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "True\n"


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    from tb_perfadvisor.execution.heap import keep_freed_memory

    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    keep_freed_memory()
