"""Paths as torch.compile's Inductor writes them, and paths that only look alike."""

from __future__ import annotations

import pytest

from tb_perfadvisor.report.places import parse_place
from tb_perfadvisor.signals.core.origins import user_line
from tb_perfadvisor.trace.names import is_generated

# From a recorded trace of Stable Diffusion 3.5 with xDiT.
NAME = "ov/cov463qhi2m2kw6ldmzzijfv5t3cjjklfci3qly3nsw6upcskct3.py"


@pytest.mark.parametrize(
    "path",
    [f"/tmp/torchinductor_root/{NAME}", f"/cache/{NAME}", NAME, f"/c/{NAME}".replace("/", "\\")],
)
def test_files_of_inductors_cache_are_generated(path: str) -> None:
    assert is_generated(path)
    assert user_line(f"{path}(2533): call") is None
    assert parse_place(f"{path}:2533 call") is None


@pytest.mark.parametrize(
    "path", ["train.py", "ov/cov463.py", "ab/" + NAME[3:], "src/my_torchinductor_tools/run.py"]
)
def test_other_files_are_the_users(path: str) -> None:
    assert not is_generated(path)
    assert user_line(f"{path}(7): call") is not None
    assert parse_place(f"{path}:7 call") is not None


def test_where_xla_leaves_directories_out_the_files_of_the_program_tell() -> None:
    frame = "$conditionals.py:191 cond"
    assert user_line(frame) == "conditionals.py:191 cond"
    assert user_line(frame, ("fit.py",)) is None
    assert user_line("$fit.py:9 fit", ("fit.py",)) == "fit.py:9 fit"
    assert user_line("/home/me/fit.py(9): fit", ("main.py",)) == "me/fit.py:9 fit"
