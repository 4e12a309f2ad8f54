"""XSpaces: drawn ones, and some with details that drawings lack."""

from __future__ import annotations

from functools import cache
from random import Random

from tests.fuzz.format import Files, Format, SeedFile
from tests.fuzz.formats.drawn import SESSION, any_drawing, written
from tests.fuzz.formats.tf_tools import some_results
from tests.fuzz.message_changes import change_message
from tests.fuzz.schema_changes import change_xspace
from tests.support.device_xspaces import gpu_xspace, tpu_xspace
from tests.support.hlo_programs import program

_DETAILED_SHARE = 0.2
_WITH_RESULTS_SHARE = 0.2


def _choose(random: Random) -> Files:
    if random.random() < _DETAILED_SHARE:
        data = random.choice(_detailed())
    else:
        framework = random.choice(("tensorflow", "jax", "pytorch"))
        data = written("xplane", any_drawing(random), framework)
    change = random.choice((change_message, change_xspace))
    files = (SeedFile(f"run/{SESSION}/host.xplane.pb", data, change),)
    return files + some_results(random)[:1] if random.random() < _WITH_RESULTS_SHARE else files


@cache
def _detailed() -> tuple[bytes, ...]:
    """XSpaces with programs, counters and tf.data."""
    gpu, tpu = gpu_xspace(), tpu_xspace()
    for space in (gpu, tpu):
        programs = space.plane("/host:metadata")
        line = space.line(programs, "programs")
        space.event(
            programs, line, "jit_step(7)", 0, 1, shared={"Hlo Proto": program()}, program_id=7
        )
    return gpu.bytes(), tpu.bytes()


XPLANE = Format("xplane", _choose, weight=2)
