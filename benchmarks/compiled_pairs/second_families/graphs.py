"""Graph networks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from compiled_pairs.program import Array, Program, Role

_WIDE = jnp.float32


def scattered_neighbors(role: Role) -> Program:
    """Messages over a graph in which each node has 16 neighbors.

    Slow: messages of a list of edges are added to their targets by a segment sum.
    Fixed: neighbors come as an array of nodes by 16, and messages are summed over its axis.
    """
    nodes, degree, features = 16_384, 16, 128

    def update(x: Any, layers: Any, sources: Any, weights: Any, targets: Any = None) -> Any:
        for p in layers:
            sent = x @ p["send"]
            messages = sent[sources] * weights[..., None].astype(x.dtype)
            if role == "slow":
                total = jax.ops.segment_sum(messages.astype(_WIDE), targets, nodes)
            else:
                total = jnp.sum(messages.astype(_WIDE), axis=1)
            x = jax.nn.relu(x @ p["keep"] + total.astype(x.dtype))
        return x

    layer = {"send": Array((features, features)), "keep": Array((features, features))}
    x = Array((nodes, features))
    if role == "slow":
        edges: tuple[int, ...] = (nodes * degree,)
        rest: Any = (Array(edges, jnp.int32), Array(edges, _WIDE), Array(edges, jnp.int32))
    else:
        edges = (nodes, degree)
        rest = (Array(edges, jnp.int32), Array(edges, _WIDE))
    return Program(update, (x, [layer] * 2, *rest))


def dense_molecules(role: Role) -> Program:
    """Messages within 512 molecules of 32 atoms, each of which has about four bonds.

    Slow: products with the matrices of bonds, most of whose elements are zero.
    Fixed: the bonds as a list, by a gather and a segment sum.
    """
    molecules, atoms, features, degree = 512, 32, 128, 4

    def update(x: Any, layers: Any, bonds: Any, weights: Any = None) -> Any:
        for p in layers:
            sent = x @ p["send"]
            if role == "slow":
                total = jnp.einsum("mij,mjf->mif", bonds, sent)
            else:
                flat = sent.reshape(molecules * atoms, features)
                messages = (flat[bonds[1]] * weights[:, None]).astype(_WIDE)
                total = jax.ops.segment_sum(messages, bonds[0], molecules * atoms)
                total = total.reshape(x.shape).astype(x.dtype)
            x = x + jax.nn.relu(total + x @ p["keep"]) @ p["out"]
        return x

    layer = {name: Array((features, features)) for name in ("send", "keep", "out")}
    x = Array((molecules, atoms, features))
    if role == "slow":
        return Program(update, (x, [layer] * 3, Array((molecules, atoms, atoms))))
    count = molecules * atoms * degree
    return Program(update, (x, [layer] * 3, Array((2, count), jnp.int32), Array((count,))))
