"""The size of the elements of a tf.data pipeline."""

from __future__ import annotations

import re

# Of a size of 64 bits; Python refuses to parse thousands of digits.
_MOST_DIGITS = 20
_BYTES = {
    **{"float": 4, "double": 8, "half": 2, "bfloat16": 2, "bool": 1},
    **{f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{"complex64": 8, "complex128": 16},
}


def element_bytes(shapes: str, types: str, *, batch_size: int = -1) -> int | None:
    """The size of an element in bytes.

    Args:
        shapes: Shapes of the components of the element: `[?,32,32,3] [?]`.
        types: Types of the components: `float int64`.
        batch_size: Replaces an unknown first dimension; -1 if unknown.

    Returns:
        None if the size of a dimension or a type is unknown; strings have no fixed size.
    """
    components = re.findall(r"\[([^\]]*)\]", shapes)
    names = types.split()
    if not components or len(components) != len(names) or "unknown" in shapes:
        return None
    total = 0
    for dimensions, name in zip(components, names, strict=True):
        if name not in _BYTES:
            return None
        size = _BYTES[name]
        for position, text in enumerate(filter(None, dimensions.split(","))):
            if text.isdecimal() and len(text) <= _MOST_DIGITS:
                size *= int(text)
            elif position == 0 and batch_size > 0:
                size *= batch_size
            else:
                return None
        total += size
    return total
