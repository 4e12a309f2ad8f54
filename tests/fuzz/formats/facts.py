"""What recorders store beside a capture."""

from __future__ import annotations

import json
from random import Random

import msgspec

from tb_perfadvisor.machine import facts as schema
from tests.fuzz.format import Files, Format, SeedFile
from tests.fuzz.formats.drawn import any_drawing, written
from tests.fuzz.json_changes import change_json
from tests.fuzz.tree_changes import change_tree
from tests.support.recorded_facts import FACTS as SOUND

_KEYS = tuple(
    dict.fromkeys(
        field
        for found in vars(schema).values()
        if isinstance(found, type) and issubclass(found, msgspec.Struct)
        for field in found.__struct_fields__
    )
)


def _change(data: bytes, random: Random) -> bytes:
    root = json.loads(data)
    for _ in range(random.choice((1, 1, 2, 3, 4))):
        change_tree(root, random, _KEYS)
    return json.dumps(root).encode("utf-8", "surrogatepass")


def _choose(random: Random) -> Files:
    profile = written("kineto", any_drawing(random), "pytorch")
    return (
        SeedFile("run/worker0.perfadvisor.json", msgspec.json.encode(SOUND), _change),
        SeedFile("run/worker0.pt.trace.json", profile, change_json),
    )


FACTS = Format("facts", _choose)
