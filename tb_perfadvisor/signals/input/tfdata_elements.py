"""How large the elements of a tf.data pipeline are."""

from __future__ import annotations

import re

_BYTES = {
    **{"float": 4, "double": 8, "half": 2, "bfloat16": 2, "bool": 1},
    **{f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{"complex64": 8, "complex128": 16},
}


def element_bytes(shapes: str, types: str, *, batch_size: int = -1) -> int | None:
    """The size of an element of known shapes, `[?,32,32,3] [?]` of `float int64`.

    Args:
        shapes: Of the element's parts.
        types: Of its parts.
        batch_size: What an unknown first dimension is taken for; -1 for nothing.

    Returns:
        None where a dimension or a type has no known size, as that of a string.
    """
    parts = re.findall(r"\[([^\]]*)\]", shapes)
    names = types.split()
    if not parts or len(parts) != len(names) or "unknown" in shapes:
        return None
    total = 0
    for part, name in zip(parts, names, strict=True):
        if name not in _BYTES:
            return None
        size = _BYTES[name]
        for position, text in enumerate(filter(None, part.split(","))):
            if text.isdigit():
                size *= int(text)
            elif position == 0 and batch_size > 0:
                size *= batch_size
            else:
                return None
        total += size
    return total
