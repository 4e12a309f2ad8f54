"""The programs of ten families and what limits each, decided before any of them was compiled."""

from __future__ import annotations

import random

from compiled_pairs.pair import CompiledPair, Kind

GENERATIONS = ("v5e", "v5p", "v6e", "tpu7x")


def family_pair(
    family: str,
    kind: Kind,
    program: str,
    cause: str,
    *first: str,
    chips: int = 1,
    still_true: tuple[str, ...] = (),
    folder: str = "families",
) -> CompiledPair:
    """A pair of a family, named by its function.

    Args:
        family: What such programs are called.
        kind: Of the pair.
        program: `module.function` in the folder.
        cause: What makes it slow.
        first: Rules that would be right.
        chips: That execute it.
        still_true: Rules that are right about the fixed one, too.
        folder: Of the batch.
    """
    name = program.rpartition(".")[2].replace("_", "-")
    return CompiledPair(
        name,
        f"{folder}.{program}",
        kind,
        cause,
        first,
        still_true=still_true,
        chips=chips,
        family=family,
    )


EXPOSED = ("exposed-communication", "synchronous-collectives")

FAMILY_PAIRS = (
    family_pair(
        "transformer training", "healthy", "language.pretraining", "a step of Llama's kind"
    ),
    family_pair(
        "transformer training",
        "cause",
        "language.exact_blocks",
        "blocks in 32 bits with the highest precision; fixed: in 16",
        "full-precision-compute",
    ),
    family_pair(
        "transformer training",
        "trap",
        "language.kept_state",
        "the state is not donated, although each step rewrites it; fixed: donated",
    ),
    family_pair(
        "transformer training",
        "cause",
        "language.classifier",
        "the last block computes all positions, of which the first is used; fixed: the first",
        "unused-results",
    ),
    family_pair(
        "long context",
        "cause",
        "language.whole_attention",
        "causal attention over all pairs of positions; fixed: up to each block",
        "unused-results",
        "unfused-attention",
    ),
    family_pair(
        "long context",
        "cause",
        "language.bias_of_positions",
        "a bias of all pairs of positions is read; fixed: computed",
        "masks-from-memory",
        "broadcast-overhead",
        "rewritten-arrays",
        "unused-results",
    ),
    family_pair(
        "long context",
        "trap",
        "language.repeated_rotations",
        "rotary embeddings are computed in each block; fixed: read",
    ),
    family_pair("decode", "healthy", "serving.serving", "grouped queries and donated caches"),
    family_pair(
        "decode",
        "cause",
        "serving.shifted_cache",
        "a cache that is shifted by one position; fixed: a ring",
        "rewritten-arrays",
    ),
    family_pair(
        "decode",
        "cause",
        "serving.window_of_cache",
        "a window of 512 positions by masking 8,192; fixed: by reading 512",
        "unused-results",
    ),
    family_pair(
        "decode",
        "cause",
        "serving.repeated_groups",
        "keys and values are repeated for the queries of a group; fixed: shared",
        "broadcast-overhead",
        "reshape-overhead",
        "transpose-overhead",
    ),
    family_pair(
        "decode",
        "cause",
        "serving.nucleus",
        "all logits are sorted; fixed: the 64 largest",
        "data-shuffling",
    ),
    family_pair(
        "decode",
        "cause",
        "serving.prefill_of_all",
        "logits of all positions of a prompt; fixed: of the last",
        "unused-results",
    ),
    family_pair(
        "mixture of experts",
        "cause",
        "serving.all_experts",
        "all experts compute all tokens; fixed: their share",
        "unused-results",
    ),
    family_pair(
        "mixture of experts",
        "cause",
        "serving.dispatched_by_mask",
        "tokens go to experts by products with a mask; fixed: by index",
        "one-hot-product",
    ),
    family_pair(
        "diffusion", "healthy", "images.denoising", "a residual block and attention to words"
    ),
    family_pair(
        "diffusion",
        "cause",
        "images.wide_denoising",
        "32 bits; fixed: 16",
        "full-precision-compute",
    ),
    family_pair(
        "diffusion",
        "cause",
        "images.words_in_each_step",
        "keys and values of words in each of 16 steps; fixed: once",
        "repeated-products",
    ),
    family_pair(
        "diffusion",
        "cause",
        "images.guided_twice",
        "guided and free prediction one after the other; fixed: one batch",
        "small-batch",
        "weights-read-twice",
    ),
    family_pair(
        "residual networks",
        "cause",
        "images.strided_shortcut",
        "filters at all places, of which one in four is used; fixed: at those",
        "unused-results",
    ),
    family_pair(
        "residual networks", "healthy", "images.bottleneck", "training with batch normalization"
    ),
    family_pair(
        "residual networks",
        "cause",
        "images.prepared_on_chip",
        "images come in 32 bits; fixed: in 16",
        "full-precision-compute",
        "transpose-overhead",
        "reshape-overhead",
    ),
    family_pair(
        "recommender",
        "cause",
        "tables.moments_of_all_rows",
        "Adam over all rows; fixed: over those that were looked up",
        "rewritten-arrays",
    ),
    family_pair(
        "recommender",
        "cause",
        "tables.features_by_one_hot",
        "categories as one-hot vectors; fixed: as rows",
        "one-hot-product",
    ),
    family_pair("recommender", "healthy", "tables.towers", "two towers"),
    family_pair(
        "recommender",
        "cause",
        "tables.pairs_of_fields",
        "the upper half of all pairs is gathered; fixed: all are used",
        "data-shuffling",
    ),
    family_pair(
        "graphs",
        "cause",
        "tables.messages_by_edge",
        "a layer over the ends of each edge; fixed: over each node",
        "costly-product-order",
        "data-shuffling",
    ),
    family_pair(
        "graphs",
        "cause",
        "tables.widened_messages",
        "nodes are widened before neighbors are summed; fixed: after it",
        "costly-product-order",
        "data-shuffling",
    ),
    family_pair("graphs", "healthy", "tables.neighbors", "neighbors as a table"),
    family_pair(
        "recurrence",
        "cause",
        "sequences.inputs_in_loop",
        "inputs are multiplied in each step; fixed: at once before",
        "products-in-loop",
        "short-loop-trips",
        "small-batch",
    ),
    family_pair("recurrence", "healthy", "sequences.recurrence", "inputs are multiplied at once"),
    family_pair(
        "recurrence",
        "cause",
        "sequences.state_by_state",
        "1,024 small steps; fixed: 16 blocks",
        "short-loop-trips",
    ),
    family_pair(
        "recurrence",
        "trap",
        "sequences.reversed_twice",
        "arrays are flipped; fixed: scanned in reverse",
    ),
    family_pair(
        "several chips",
        "cause",
        "on_many_chips.whole_logits",
        "logits are gathered; fixed: they stay split",
        *EXPOSED,
        "repeated-products",
        chips=4,
        still_true=EXPOSED,
    ),
    family_pair(
        "several chips",
        "cause",
        "on_many_chips.split_in_turns",
        "activations change how they are split; fixed: they do not",
        *EXPOSED,
        chips=4,
        still_true=EXPOSED,
    ),
    family_pair(
        "several chips",
        "cause",
        "on_many_chips.state_on_each_chip",
        "each chip updates all of the state; fixed: an eighth",
        "repeated-products",
        chips=8,
        still_true=EXPOSED,
    ),
    family_pair(
        "several chips",
        "healthy",
        "on_many_chips.split_parameters",
        "split parameters and a large batch",
        chips=8,
        still_true=EXPOSED,
    ),
    family_pair(
        "several chips",
        "cause",
        "on_many_chips.small_parts",
        "small layers are split over four chips; fixed: samples are",
        *EXPOSED,
        chips=4,
        still_true=EXPOSED,
    ),
)


_REFUSED = {
    "moments-of-all-rows": 1,
    "towers": 1,
    "bias-of-positions": 1,
    "messages-by-edge": 1,
    "state-on-each-chip": 1,
    "exact-blocks": 1,
}
"""Programs that the compiler refuses, or compiles for over five minutes; for how many generations.
They are compiled for the next one."""


def generation_of(pair: CompiledPair) -> str:
    """The generation for which a program of a family is compiled, by lot."""
    names = sorted(pair.name for pair in FAMILY_PAIRS)
    random.Random(36).shuffle(names)
    return GENERATIONS[(names.index(pair.name) + _REFUSED.get(pair.name, 0)) % len(GENERATIONS)]
