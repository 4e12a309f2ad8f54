"""Exports of TensorBoard's trace viewer."""

from __future__ import annotations

from random import Random

from tests.fuzz.format import Files, Format, SeedFile
from tests.fuzz.formats.drawn import SESSION, any_drawing, written
from tests.fuzz.json_changes import change_json


def _choose(random: Random) -> Files:
    data = written("chrome", any_drawing(random), random.choice(("tensorflow", "jax")))
    return (SeedFile(f"run/{SESSION}/host.trace.json", data, change_json),)


CHROME = Format("chrome", _choose)
