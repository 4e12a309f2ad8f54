"""The second batch of families and what limits each, decided before any of them was compiled.

The programs were written by someone who had not seen the rules. Which rules would be right was
decided by their names and their pages. `tiled-prompt`, `probabilities-before-argmax` and
`similarities-twice` had no rule of their own; the nearest one is named. Rules that were written
since for exactly these causes are named as well. The first try was judged without them.
"""

from __future__ import annotations

import random
from functools import partial

from compiled_pairs.families.catalog import EXPOSED, GENERATIONS, family_pair
from compiled_pairs.pair import CompiledPair

_pair = partial(family_pair, folder="second_families")

SECOND_FAMILY_PAIRS = (
    _pair(
        "transformer training",
        "cause",
        "transformer.tiny_microbatches",
        "16 microbatches of one sequence; fixed: one batch of 16",
        "products-in-loop",
        "weights-read-twice",
        "small-batch",
        "independent-trips",
    ),
    _pair(
        "transformer training",
        "cause",
        "transformer.checkpointed_small_model",
        "each layer is computed again in the backward pass; fixed: activations are kept",
        "recompute",
    ),
    _pair(
        "transformer training",
        "trap",
        "transformer.separate_qkv",
        "three products for queries, keys and values; fixed: one, whose result is split",
    ),
    _pair(
        "long context",
        "cause",
        "attention.gathered_relative_bias",
        "a bias is looked up for 4 million pairs; fixed: multiplied by one-hot buckets",
        "data-shuffling",
    ),
    _pair(
        "long context",
        "trap",
        "attention.rebuilt_masks",
        "each layer makes its mask; fixed: read",
    ),
    _pair("long context", "healthy", "attention.local_blocks", "blocks of a window"),
    _pair(
        "decode",
        "cause",
        "decoding.tiled_prompt",
        "keys and values of the encoder are stored for each beam; fixed: for each request",
        "broadcast-overhead",
    ),
    _pair(
        "decode",
        "cause",
        "decoding.verified_one_by_one",
        "four drafted words are verified one after the other; fixed: together",
        "products-in-loop",
        "weights-read-twice",
        "small-batch",
    ),
    _pair(
        "decode",
        "trap",
        "decoding.unrolled_layers",
        "layers in a Python loop; fixed: a scan over stacked ones",
    ),
    _pair(
        "mixture of experts",
        "cause",
        "experts.gathered_expert_weights",
        "the matrices of each word's experts are gathered; fixed: all experts compute all words",
        "data-shuffling",
    ),
    _pair(
        "mixture of experts",
        "trap",
        "experts.router_in_float32",
        "a router in 32 bits; fixed: in 16",
    ),
    _pair(
        "diffusion",
        "cause",
        "diffusion.upsampled_first",
        "pixels are repeated, then filtered; fixed: filtered, then repeated",
        "broadcast-overhead",
    ),
    _pair(
        "diffusion",
        "cause",
        "diffusion.concatenated_skips",
        "channels are joined before filters; fixed: two products are added",
        "redundant-copies",
        "data-shuffling",
    ),
    _pair(
        "diffusion",
        "healthy",
        "diffusion.modulated_block",
        "a block of a diffusion transformer",
    ),
    _pair(
        "vision",
        "cause",
        "vision.counted_dropout",
        "dropout by a generator that counts; fixed: by the chip's own",
        "slow-random",
        "random-number-kernels",
    ),
    _pair(
        "vision",
        "cause",
        "vision.probabilities_before_argmax",
        "probabilities of which only the largest counts; fixed: the largest logit",
        "unfused-operators",
        "needless-probabilities",
    ),
    _pair(
        "vision",
        "trap",
        "vision.unfolded_batch_norm",
        "stored statistics after each convolution; fixed: folded into the filters",
    ),
    _pair(
        "recommender",
        "cause",
        "recommend.dense_table_gradient",
        "all rows of a table are updated; fixed: those that were looked up",
        "rewritten-arrays",
    ),
    _pair(
        "recommender",
        "cause",
        "recommend.triangle_by_gather",
        "half of all pairs is gathered; fixed: all are used",
        "data-shuffling",
    ),
    _pair("recommender", "healthy", "recommend.two_towers", "two towers"),
    _pair(
        "recurrence",
        "cause",
        "recurrent.projected_in_the_loop",
        "inputs are multiplied in each step; fixed: at once before",
        "products-in-loop",
        "short-loop-trips",
        "small-batch",
    ),
    _pair(
        "recurrence",
        "cause",
        "recurrent.token_by_token",
        "1,024 small steps; fixed: chunks of 128",
        "short-loop-trips",
        "linear-recurrence",
    ),
    _pair("recurrence", "healthy", "recurrent.gated_units", "inputs are multiplied at once"),
    _pair(
        "graphs",
        "cause",
        "graphs.scattered_neighbors",
        "messages of edges are added up by a scatter; fixed: along an axis of neighbors",
        "data-shuffling",
    ),
    _pair(
        "graphs",
        "trap",
        "graphs.dense_molecules",
        "products with mostly empty matrices of bonds; fixed: a list of bonds",
    ),
    _pair(
        "several chips",
        "cause",
        "sharded.gathered_gradients",
        "gradients of all chips are gathered; fixed: reduced and scattered",
        *EXPOSED,
        "gathered-for-part",
        chips=4,
        still_true=EXPOSED,
    ),
    _pair(
        "several chips",
        "cause",
        "sharded.copied_optimizer",
        "each chip updates all of the state; fixed: a quarter",
        "replicated-optimizer",
        "repeated-products",
        "repeated-updates",
        chips=4,
        still_true=EXPOSED,
    ),
    _pair(
        "several chips",
        "trap",
        "sharded.separate_reductions",
        "a reduction for each gradient; fixed: one of all",
        chips=4,
        still_true=EXPOSED,
    ),
    _pair(
        "several chips",
        "cause",
        "sharded.gathered_heads",
        "each chip gathers all heads and takes its own; fixed: an exchange",
        *EXPOSED,
        "gathered-for-part",
        chips=8,
        still_true=EXPOSED,
    ),
    _pair(
        "several chips",
        "healthy",
        "sharded.data_parallel",
        "a large batch for each chip",
        chips=8,
        still_true=EXPOSED,
    ),
    _pair(
        "simulation",
        "cause",
        "science.neighbors_by_index",
        "neighbors are looked up by index; fixed: by rolling the grid",
        "data-shuffling",
    ),
    _pair(
        "simulation",
        "cause",
        "science.vectors_of_three",
        "coordinates are the last axis of all pairs; fixed: three arrays",
        "padded-shapes",
        "slow-operation",
    ),
    _pair(
        "simulation",
        "healthy",
        "science.conjugate_gradients",
        "conjugate gradients without a matrix",
    ),
    _pair(
        "losses",
        "cause",
        "losses.emissions_in_the_loop",
        "each step of a loop normalizes its frame; fixed: all before the loop",
        "short-loop-trips",
        "data-shuffling",
    ),
    _pair(
        "losses",
        "cause",
        "losses.similarities_twice",
        "two products, of which one is the other's transpose; fixed: one",
        "recompute",
        "twin-products",
    ),
    _pair(
        "losses",
        "trap",
        "losses.one_hot_loss",
        "one-hot labels times logarithms; fixed: looked up",
    ),
)

_REFUSED = {
    "concatenated-skips": 1,
    "gathered-gradients": 1,
    "gathered-heads": 1,
    "gathered-relative-bias": 2,
    "neighbors-by-index": 2,
}
"""As in the first batch: for how many generations the compiler refuses a program, or is not asked
because it refuses programs of this kind there."""


def generation_of(pair: CompiledPair) -> str:
    """The generation for which a program of this batch is compiled, by lot."""
    names = sorted(pair.name for pair in SECOND_FAMILY_PAIRS)
    random.Random(37).shuffle(names)
    return GENERATIONS[(names.index(pair.name) + _REFUSED.get(pair.name, 0)) % len(GENERATIONS)]
