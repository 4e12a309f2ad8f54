"""From a number to a damaged profile."""

from __future__ import annotations

from random import Random

from tests.fuzz import profiles
from tests.fuzz.byte_changes import change_bytes
from tests.fuzz.json_changes import change_json
from tests.fuzz.message_changes import change_message
from tests.fuzz.profiles import Profile, ProfileFile

# What is in a file is damaged more often than its bytes: most changed bytes only end the reading.
_BYTES_SHARE = 0.2
_PACKED_BYTES_SHARE = 0.05


def make_case(seed: int, number: int) -> Profile:
    """The damaged profile of a case, the same for the same numbers."""
    random = Random(f"{seed}/{number}")
    files = profiles.choose(random)
    # One file of several, or all of them.
    damaged = {random.randrange(len(files))} if random.random() < 0.7 else set(range(len(files)))
    return tuple(
        _damaged(file, random) if place in damaged else file for place, file in enumerate(files)
    )


def _damaged(file: ProfileFile, random: Random) -> ProfileFile:
    data = file.data
    if random.random() > _BYTES_SHARE:
        is_json = file.form in ("kineto", "chrome", "tool-json")
        data = (change_json if is_json else change_message)(data, random)
    else:
        data = change_bytes(data, random)
    packed = profiles.pack(data, random)
    path = file.path
    if packed is not data:
        path += ".gz" if not path.endswith(".pb") else ""
        if random.random() < _PACKED_BYTES_SHARE * 4:
            packed = change_bytes(packed, random)
    return ProfileFile(path, file.form, packed)
