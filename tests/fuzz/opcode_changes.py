"""Changes to the instructions of a pickle, which stay instructions."""

from __future__ import annotations

import pickletools
from random import Random

# Containers, numbers, references, ends of containers, and what runs code.
_INSTRUCTIONS = (
    *(b"]", b"}", b")", b"(", b"N", b"\x88", b"\x94", b"a", b"e", b"s", b"u", b"t", b"0", b"2"),
    *(b"\x85", b"\x86", b"\x87", b"K\x01", b"J\xff\xff\xff\xff", b"\x8a\x08" + b"\xff" * 8),
    *(b"h\x00", b"h\x05", b"j\xff\xff\xff\x7f", b"q\x00", b"\x8c\x06frames", b"\x8c\x06action"),
    *(b"\x8c\x00", b"G\x7f\xf0" + bytes(6), b"c", b"R", b"\x93", b"."),
)


def change_instructions(data: bytes, random: Random) -> bytes:
    """The pickle with one to four changes to its instructions."""
    starts = [at for _, _, at in pickletools.genops(data) if at is not None]
    parts = [data[a:b] for a, b in zip(starts, [*starts[1:], len(data)], strict=True)]
    for _ in range(random.choice((1, 1, 2, 3, 4))):
        at, other = random.randrange(len(parts)), random.randrange(len(parts))
        match random.randrange(5):
            case 0:
                parts[at:at] = [random.choice(_INSTRUCTIONS)] * random.choice((1, 1, 3, 5_000))
            case 1 if len(parts) > 1:
                del parts[at : at + random.choice((1, 1, 4))]
                parts = parts or [b"."]
            case 2:
                parts[at], parts[other] = parts[other], parts[at]
            case 3:
                parts[at:at] = parts[at : at + random.choice((1, 5, 40))] * random.choice((1, 20))
            case _:
                parts[at] = random.choice(_INSTRUCTIONS)
    return b"".join(parts)
