"""Programs like those of well-known models that do more than they need, in several sizes each."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from compiled_pairs.program import Array, Program, Role, descend, mean_square
from compiled_pairs.sharded import CHIPS


def sampled_correlations(
    role: Role, batch: int, height: int, width: int, features: int, radius: int
) -> Program:
    """Correlations around a moved place by gathers, or by products with two hat matrices."""
    side = 2 * radius + 1

    def sample(left: Any, right: Any, motion: Any) -> Any:
        volume = jnp.einsum("bhwf,byxf->bhwyx", left, right, preferred_element_type=jnp.float32)
        volume = volume.reshape(-1, height, width)
        places = jnp.stack(jnp.meshgrid(jnp.arange(height), jnp.arange(width), indexing="ij"), -1)
        centers = (places + motion).reshape(-1, 2)
        offsets = jnp.arange(side) - radius
        rows = centers[:, :1] + offsets
        columns = centers[:, 1:] + offsets
        if role == "fixed":
            of_rows = jax.nn.relu(1 - jnp.abs(rows[:, :, None] - jnp.arange(height)))
            of_columns = jax.nn.relu(1 - jnp.abs(columns[:, :, None] - jnp.arange(width)))
            return jnp.einsum("nyh,nhw,nxw->nyx", of_rows, volume, of_columns)

        def around(plane: Any, row: Any, column: Any) -> Any:
            grid = jnp.meshgrid(row, column, indexing="ij")
            return jax.scipy.ndimage.map_coordinates(plane, grid, order=1, mode="constant")

        return jax.vmap(around)(volume, rows, columns)

    image = Array((batch, height, width, features))
    motion = Array((batch, height, width, 2), jnp.float32)
    return Program(sample, (image, image, motion), donated=())


def selective_states(role: Role, batch: int, time: int, features: int, states: int) -> Program:
    """A linear recurrence whose states are all written, or stay on the chip."""

    def mix(x: Any, weights: Any) -> Any:
        decay = jax.nn.softplus(x @ weights["decay"]).astype(jnp.float32)
        into = (x @ weights["into"]).astype(jnp.float32)
        out_of = (x @ weights["out_of"]).astype(jnp.float32)

        def factors(decay: Any, into: Any, x: Any) -> tuple[Any, Any]:
            kept = jnp.exp(decay[..., None] * weights["rate"])
            return kept, (decay * x)[..., None] * into[..., None, :]

        if role == "slow":
            pairs = factors(decay, into, x.astype(jnp.float32))

            def join(first: Any, second: Any) -> tuple[Any, Any]:
                return first[0] * second[0], first[1] * second[0] + second[1]

            y = jnp.einsum(
                "btfs,bts->btf", jax.lax.associative_scan(join, pairs, axis=1)[1], out_of
            )
        else:

            def step(state: Any, of_time: Any) -> Any:
                decay, into, out_of, x = of_time
                kept, added = factors(decay, into, x.astype(jnp.float32))
                state = kept * state + added
                return state, jnp.sum(state * out_of[:, None, :], axis=-1)

            by_time = jax.tree.map(lambda a: jnp.swapaxes(a, 0, 1), (decay, into, out_of, x))
            start = jnp.zeros((batch, features, states), jnp.float32)
            y = jnp.swapaxes(jax.lax.scan(step, start, by_time, unroll=8)[1], 0, 1)
        return y.astype(x.dtype) @ weights["out"]

    weights = {
        "decay": Array((features, features)),
        "into": Array((features, states)),
        "out_of": Array((features, states)),
        "rate": Array((features, states), jnp.float32),
        "out": Array((features, features)),
    }
    return Program(mix, (Array((batch, time, features)), weights), donated=())


def clipped_examples(role: Role, batch: int, time: int, features: int, hidden: int) -> Program:
    """Gradients that are clipped by example, from all of them or from their norms."""

    def loss(layers: Any, x: Any, y: Any) -> Any:
        h = jax.nn.relu(x @ layers["up"])
        return mean_square(h @ layers["down"] - y)

    def by_example(layers: Any, x: Any, y: Any) -> Any:
        gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(layers, x, y)
        squares = [
            jnp.sum(jnp.square(g.astype(jnp.float32)), axis=(1, 2))
            for g in jax.tree.leaves(gradients)
        ]
        scale = jnp.minimum(1.0, 1.0 / jnp.sqrt(sum(squares)))
        return jax.tree.map(lambda g: jnp.einsum("bij,b->ij", g, scale.astype(g.dtype)), gradients)

    def by_norms(layers: Any, x: Any, y: Any) -> Any:
        h = jax.nn.relu(x @ layers["up"])
        error = h @ layers["down"] - y
        of_down = (2 * error.astype(jnp.float32) / (time * features)).astype(x.dtype)
        of_up = jnp.where(h > 0, of_down @ layers["down"].T, 0)

        def squares(a: Any, b: Any) -> Any:
            products = [jnp.einsum("bti,bsi->bts", v, v) for v in (a, b)]
            return jnp.sum((products[0] * products[1]).astype(jnp.float32), axis=(1, 2))

        norms = jnp.sqrt(squares(x, of_up) + squares(h, of_down))
        scale = jnp.minimum(1.0, 1.0 / norms).astype(x.dtype)[:, None, None]
        return {
            "up": jnp.einsum("bti,btj->ij", x, of_up * scale),
            "down": jnp.einsum("bti,btj->ij", h, of_down * scale),
        }

    def train_step(layers: Any, x: Any, y: Any) -> Any:
        return descend(layers, (by_example if role == "slow" else by_norms)(layers, x, y))

    layers = {"up": Array((features, hidden)), "down": Array((hidden, features))}
    sample = Array((batch, time, features))
    return Program(train_step, (layers, sample, sample))


def expert_places(role: Role, tokens: int, experts: int, features: int) -> Program:
    """Places of tokens in the queues of experts, by one long sum or by sums of blocks."""

    def route(x: Any, weights: Any) -> Any:
        chosen = jax.nn.one_hot(jnp.argmax(x @ weights, axis=-1), experts, dtype=jnp.float32)
        if role == "slow":
            places = jnp.cumsum(chosen, axis=0)
        else:
            blocks = chosen.astype(jnp.bfloat16).reshape(-1, 256, experts)
            earlier = jnp.tril(jnp.ones((256, 256), jnp.bfloat16))
            inside = jnp.einsum("ts,bse->bte", earlier, blocks, preferred_element_type=jnp.float32)
            # To slice the last sums out of `inside` takes longer than to sum up once more.
            ones = jnp.ones((256,), jnp.bfloat16)
            sums = jnp.einsum("s,bse->be", ones, blocks, preferred_element_type=jnp.float32)
            before = jnp.cumsum(sums, axis=0) - sums
            places = (inside + before[:, None]).reshape(tokens, experts)
        return jnp.sum((places - 1) * chosen, axis=-1).astype(jnp.int32)

    return Program(route, (Array((tokens, features)), Array((features, experts))), donated=())


def unfolded_images(
    role: Role, batch: int, side: int, channels: int, features: int, window: int
) -> Program:
    """A convolution by patches of the image and a product, or as such."""

    def filtered(images: Any, kernel: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        if role == "fixed":
            y = jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=dims)
        else:
            patches = jax.lax.conv_general_dilated_patches(
                images, (window, window), (1, 1), "SAME", dimension_numbers=dims
            )
            weights = jnp.transpose(kernel, (2, 0, 1, 3)).reshape(-1, features)
            y = patches @ weights
        return jax.nn.relu(y)

    arguments = (
        Array((batch, side, side, channels)),
        Array((window, window, channels, features)),
    )
    return Program(filtered, arguments, donated=())


def split_heads(
    role: Role, batch: int, time: int, features: int, heads: int, chips: int
) -> Program:
    """Training of attention whose weights are split over the chips, or whose batch is."""

    def normalized(x: Any) -> Any:
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + 1e-6)
        return (wide * scale).astype(x.dtype)

    def loss(layers: Any, x: Any) -> Any:
        for layer in layers:
            y = normalized(x)
            q, k, v = ((y @ layer[name]).reshape(batch, time, heads, -1) for name in "qkv")
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
            mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(x.dtype), v)
            x = x + mixed.reshape(batch, time, features) @ layer["o"]
            x = x + jax.nn.gelu(normalized(x) @ layer["up"]) @ layer["down"]
        return mean_square(x)

    def train_step(layers: Any, x: Any) -> Any:
        return descend(layers, jax.grad(loss)(layers, x))

    is_split = role == "slow"
    rows = PartitionSpec(CHIPS) if is_split else PartitionSpec()
    columns = PartitionSpec(None, CHIPS) if is_split else PartitionSpec()
    layer = {name: Array((features, features), spec=columns) for name in "qkv"}
    layer["o"] = Array((features, features), spec=rows)
    layer["up"] = Array((features, 4 * features), spec=columns)
    layer["down"] = Array((4 * features, features), spec=rows)
    x = Array((batch, time, features), spec=PartitionSpec() if is_split else PartitionSpec(CHIPS))
    return Program(train_step, ([layer], x), chips=chips, is_manual=False)
