"""The drawings of all rules' tests, written as files of a format."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any, Literal

from tb_perfadvisor.testing import draw
from tests.support.drawings import drawings
from tests.support.writers import write_chrome, write_kineto, write_nsight, write_xplane

SESSION = "plugins/profile/2026_01_01_00_00_00"
_WRITERS = {
    "kineto": write_kineto,
    "nsight": write_nsight,
    "xplane": write_xplane,
    "chrome": write_chrome,
}


def any_drawing(random: Random) -> int:
    """The number of one of the drawings."""
    return random.randrange(len(_texts()))


@cache
def written(
    form: Literal["kineto", "nsight", "xplane", "chrome"],
    number: int,
    framework: str,
    rank: int = 0,
    world: int = 0,
) -> bytes:
    """A drawing as a file, that of one rank if there is a world."""
    text, is_tpu = _texts()[number]
    device = "TPU v5 lite" if is_tpu else "NVIDIA H100 80GB HBM3"
    ranks: dict[str, Any] = {"rank": rank, "world_size": world} if world else {}
    return _WRITERS[form](draw(text, device=device, framework=framework, **ranks))  # type: ignore[arg-type]


@cache
def _texts() -> tuple[tuple[str, bool], ...]:
    """The drawings, and whether each is of a TPU."""
    return tuple((text, " tpu " in text) for text in drawings().values())
