"""What the body of an XLA loop computes although it is known before the loop.

A loop passes a tuple from trip to trip. Elements that the body returns as they are never change,
and a counter grows by a constant. What depends on nothing else could be computed for all trips at
once, before the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# These rename an array, or move it to another memory.
_SAME: Final = (b"bitcast", b"copy", b"copy-start", b"copy-done")
_MAX_CHAIN: Final = 16


def known_before_loop(body: Any) -> frozenset[bytes]:
    """Names of the instructions that depend on constants of a loop and its counter only.

    Args:
        body: The computation that the loop repeats. Operands precede what uses them.
    """
    by_id = {int(member.id): member for member in body.instructions}
    root = by_id.get(int(body.root_id))
    if root is None or root.opcode != b"tuple":
        return frozenset()
    known: dict[int, bool] = {}
    for id_, member in by_id.items():
        if member.opcode == b"parameter":
            known[id_] = False
        elif member.opcode == b"get-tuple-element" and _is_element(member, by_id):
            known[id_] = _is_foreseeable(int(member.tuple_index), root, by_id)
        else:
            known[id_] = all(known.get(int(operand), False) for operand in member.operand_ids)
    return frozenset(by_id[id_].name for id_, is_known in known.items() if is_known)


def _is_element(member: Any, by_id: Mapping[int, Any]) -> bool:
    """Whether it is an element of the tuple that the loop passes, not of another result."""
    source = by_id.get(int(member.operand_ids[0])) if member.operand_ids else None
    return source is not None and source.opcode == b"parameter"


def _is_foreseeable(index: int, root: Any, by_id: Mapping[int, Any]) -> bool:
    """Whether an element stays as it is, or grows by a constant."""
    if index >= len(root.operand_ids):
        return False
    value = _origin(int(root.operand_ids[index]), by_id)
    if value is not None and value.opcode == b"add":
        terms = [_origin(int(id_), by_id) for id_ in value.operand_ids]
        others = [term for term in terms if term is None or term.opcode != b"constant"]
        value = others[0] if len(others) == 1 else None
    return (
        value is not None
        and value.opcode == b"get-tuple-element"
        and _is_element(value, by_id)
        and int(value.tuple_index) == index
    )


def _origin(id_: int, by_id: Mapping[int, Any]) -> Any:
    """The instruction that computes a value."""
    found = by_id.get(id_)
    for _ in range(_MAX_CHAIN):
        if found is None or found.opcode not in _SAME or not found.operand_ids:
            return found
        found = by_id.get(int(found.operand_ids[0]))
    return None
