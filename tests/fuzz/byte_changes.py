"""Changes to bytes, whatever they mean: cut off, overwritten, repeated, mixed."""

from __future__ import annotations

from random import Random

_TOKENS = (
    *(b'"', b"}", b"]", b"{", b"[", b",", b":", b"\\", b"\\u", b"null", b"true", b'""', b"NaN"),
    *(b"-1", b"1e9", b"1e308", b"9223372036854775807", b"18446744073709551616", b'"ts":'),
    *(b"\x00", b"\x80", b"\xff", b"\x7f", b"\xff" * 9 + b"\x01", b"\x80" * 12, b"\x0a\x00"),
    *(b"\x1f\x8b\x08\x00", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"ustar", b"\xef\xbb\xbf"),
    *(b"[" * 3000, b'{"a":' * 3000, b"\x0b", b"\x0c", b"\x2a\xff\xff\x03"),
)


def change_bytes(data: bytes, random: Random) -> bytes:
    """The bytes with one to six changes."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 6)):
        at = random.randrange(len(changed) + 1)
        choice = random.randrange(8)
        if choice == 0:
            del changed[at:]
        elif choice == 1:
            del changed[at : at + random.randrange(40)]
        elif choice == 2:
            changed[at:at] = random.choice(_TOKENS)
        elif choice == 3:
            piece = changed[at : at + random.choice((1, 8, 200, 5000))]
            changed[at:at] = piece * random.choice((1, 2, 20))
        elif choice == 4:
            new = random.choice(_TOKENS)
            changed[at : at + len(new)] = new
        elif at < len(changed):
            changed[at] = random.randrange(256)
    return bytes(changed)
