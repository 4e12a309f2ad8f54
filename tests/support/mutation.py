"""Files that were damaged at random."""

from __future__ import annotations

from hypothesis import strategies as st


@st.composite
def mutated(draw: st.DrawFn, sound: bytes, *pieces: bytes) -> bytes:
    """A sound file with up to six stretches replaced, by anything or by one of some pieces."""
    data = bytearray(sound)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 30))
        data[at : at + length] = draw(st.one_of(st.binary(max_size=12), st.sampled_from(pieces)))
    return bytes(data)
