"""Randomly damaged files."""

from __future__ import annotations

from hypothesis import strategies as st


@st.composite
def mutated(draw: st.DrawFn, sound: bytes, *pieces: bytes) -> bytes:
    """A valid file with up to six parts replaced by random bytes or by given pieces."""
    data = bytearray(sound)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 30))
        data[at : at + length] = draw(st.one_of(st.binary(max_size=12), st.sampled_from(pieces)))
    return bytes(data)
