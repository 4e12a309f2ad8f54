"""The compiled pairs and their labels, decided before any of them was compiled.

A *cause* makes a program slow on some generation. Where the compiler says that the fix gains less
than `LEAST_GAIN` there, the program is judged as a trap. A *trap* looks like a cause by common
advice, but costs little or nothing. A *healthy* program has nothing to fix.

Half of the programs of each kind are *tests*, drawn by lot: nothing is tuned on them. A test
program that revealed a bug, which was then fixed, is marked and no longer counts as a test.
"""

from __future__ import annotations

import random
from typing import Literal

from compiled_pairs.pair import CompiledPair, Kind

Split = Literal["tune", "test"]

GENERATIONS = ("v5e", "v6e", "tpu7x")
LEAST_GAIN = 0.03
"""Rules leave smaller gains out."""


def _cause(name: str, program: str, cause: str, *first: str, **others: object) -> CompiledPair:
    return CompiledPair(name, program, "cause", cause, first, **others)  # type: ignore[arg-type]


def _trap(name: str, program: str, cause: str, chips: int = 1) -> CompiledPair:
    return CompiledPair(name, program, "trap", cause, chips=chips)


def _healthy(name: str, program: str, cause: str, chips: int = 1) -> CompiledPair:
    return CompiledPair(name, program, "healthy", cause, chips=chips)


_SHUFFLING = ("data-shuffling",)
_SORTING = ("sorted-for-few", *_SHUFFLING)
_EXPOSED = ("synchronous-collectives", "exposed-communication", "long-all-reduce")

DRAWN_PAIRS = (
    _cause(
        "attention-513",
        "products.attention_513",
        "attention over 513 positions; fixed: 512",
        "padded-shapes",
    ),
    _cause(
        "attention-1000",
        "products.attention_1000",
        "attention over 1000 positions; fixed: padded to 1024",
        "padded-shapes",
    ),
    _cause(
        "batch-1",
        "products.batch_1",
        "layers on a batch of one; fixed: of eight",
        "small-batch",
        "padded-shapes",
        samples=(1, 8),
    ),
    _cause(
        "batch-9",
        "products.batch_9",
        "layers on a batch of nine; fixed: of sixteen",
        "small-batch",
        "padded-shapes",
        samples=(9, 16),
    ),
    _cause(
        "stem-of-3-channels",
        "convolutions.stem_of_3_channels",
        "a first convolution over three channels; fixed: over blocks of two by two pixels",
        "padded-shapes",
    ),
    _cause(
        "highest-precision",
        "products.highest_precision",
        "training with precision=highest; fixed: default",
        "full-precision-compute",
    ),
    _cause(
        "highest-attention",
        "products.highest_attention",
        "attention with precision=high; fixed: default",
        "full-precision-compute",
    ),
    _cause(
        "full-precision-activations",
        "products.full_precision_activations",
        "memory-bound layers in 32 bits; fixed: in 16",
        "full-precision-compute",
        "cast-overhead",
    ),
    _cause(
        "grouped-convolution",
        "convolutions.grouped_convolution",
        "eight groups of 32 channels; fixed: one group",
        "grouped-convolution",
    ),
    _cause(
        "grouped-resnext",
        "convolutions.grouped_resnext",
        "32 groups of eight channels; fixed: one group",
        "grouped-convolution",
    ),
    _cause(
        "one-hot-embedding",
        "products.one_hot_embedding",
        "an embedding as a product with one-hot rows; fixed: gathered",
        "excess-work",
    ),
    _cause(
        "one-hot-dispatch",
        "products.one_hot_dispatch",
        "tokens are routed to experts by a product with a mask; fixed: gathered",
        "excess-work",
        has_shown_a_bug=True,  # gathers of the fixed one promised time that they need
    ),
    _cause(
        "pairwise-broadcast",
        "products.pairwise_broadcast",
        "pairwise distances by a broadcast difference; fixed: by a product",
        "broadcast-overhead",
    ),
    _cause(
        "repeated-heads",
        "products.repeated_heads",
        "keys and values are repeated for eight queries each; fixed: used eight times",
        "broadcast-overhead",
        "reshape-overhead",
    ),
    _cause(
        "max-pool",
        "convolutions.max_pool",
        "training with maximum pooling; fixed: average pooling",
        "max-pool-gradient",
    ),
    _cause(
        "unfused-normalization",
        "convolutions.unfused_normalization",
        "batch normalization in separate operations; fixed: left to the compiler",
        "unfused-batch-norm",
        "unfused-operators",
    ),
    _cause(
        "normal-noise",
        "randomness.normal_noise",
        "normal noise from the default generator; fixed: from the chip's",
        "slow-random",
    ),
    _cause(
        "dropout",
        "randomness.dropout",
        "dropout by the default generator; fixed: by the chip's",
        "slow-random",
    ),
    _cause(
        "categorical",
        "randomness.categorical",
        "sampling with the default generator; fixed: with the chip's",
        "slow-random",
    ),
    _cause(
        "sort-in-step",
        "movement.sort_in_step",
        "gradients are sorted for their median; fixed: clipped at their mean",
        *_SHUFFLING,
    ),
    _cause(
        "top-k-by-sort",
        "movement.top_k_by_sort",
        "the likeliest words by a full sort; fixed: by an approximate maximum",
        *_SORTING,
        has_shown_a_bug=True,  # the small sort of an approximate maximum counted, if it was fused
    ),
    _cause(
        "random-permutation",
        "movement.random_permutation",
        "rows are shuffled by sorting; fixed: shifted",
        *_SHUFFLING,
        "slow-random",
    ),
    _cause(
        "transposed-cache",
        "movement.transposed_cache",
        "keys and values are stored transposed; fixed: as computed",
        "transpose-overhead",
    ),
    _cause(
        "stacked-layers",
        "movement.stacked_layers",
        "a scan over layers stacks their gradients; fixed: unrolled",
        *_SHUFFLING,
    ),
    _cause(
        "undonated-cache",
        "movement.undonated_cache",
        "caches are copied in each step; fixed: donated",
        "exposed-copies",
        "redundant-copies",
    ),
    _cause(
        "ragged-reshape",
        "movement.ragged_reshape",
        "features are split into pieces of 100; fixed: of 128",
        "reshape-overhead",
        "transpose-overhead",
        "padded-shapes",
    ),
    _cause(
        "scan-of-tiny-steps",
        "movement.scan_of_tiny_steps",
        "a scan of 512 tiny steps; fixed: unrolled by eight",
        "short-loop-trips",
        *_SHUFFLING,
    ),
    _cause(
        "scatter-add",
        "movement.scatter_add",
        "gradients are added at random rows of a table; fixed: at rows in order",
        *_SHUFFLING,
    ),
    _cause(
        "gather-in-loop",
        "movement.gather_in_loop",
        "rows are gathered one by one in a loop; fixed: all at once",
        *_SHUFFLING,
        "short-loop-trips",
    ),
    _cause(
        "recomputed-blocks",
        "transformers.recomputed_blocks",
        "blocks are recomputed although memory is free; fixed: kept",
        "recompute",
    ),
    _cause(
        "recomputed-layers",
        "transformers.recomputed_layers",
        "feed-forward layers are recomputed although memory is free; fixed: kept",
        "recompute",
    ),
    _cause(
        "host-offload",
        "transformers.host_offload",
        "activations are kept in host memory; fixed: on the device",
        "host-offload-copies",
        "exposed-copies",
        has_shown_a_bug=True,  # slices of an array on the host counted as compute
    ),
    _cause(
        "late-all-reduce",
        "sharded.late_all_reduce",
        "32-bit gradients are reduced after the backward pass; fixed: during it, in 16 bits",
        *_EXPOSED,
        "full-precision-gradients",
        still_true=_EXPOSED,
        chips=4,
    ),
    _cause(
        "reduce-each-micro-batch",
        "sharded.reduce_each_micro_batch",
        "gradients are reduced after each of four micro-batches; fixed: once",
        "redundant-all-reduce",
        *_EXPOSED,
        still_true=_EXPOSED,
        chips=4,
    ),
    _cause(
        "gathered-weights",
        "sharded.gathered_weights",
        "weights are gathered when they are needed; fixed: ahead of time",
        *_EXPOSED,
        still_true=_EXPOSED,
        chips=4,
    ),
    _cause(
        "tensor-parallel-in-32-bits",
        "sharded.tensor_parallel_in_32_bits",
        "partial sums are reduced in 32 bits; fixed: in 16",
        *_EXPOSED,
        "full-precision-gradients",
        still_true=_EXPOSED,
        chips=4,
    ),
    _healthy(
        "transformer-block",
        "transformers.transformer_block",
        "training of transformer blocks whose sizes fill the tiles",
    ),
    _healthy(
        "convolutional-net",
        "convolutions.convolutional_net",
        "training of residual blocks of 256 channels",
    ),
    _healthy(
        "decode-loop",
        "transformers.decode_loop",
        "decoding with caches that are updated in place",
    ),
    _healthy(
        "sharded-training",
        "sharded.sharded_training",
        "training on four chips with a batch that hides the reduction",
        chips=4,
    ),
    _trap("product-n-130", "products.product_n_130", "a product with 130 columns; fixed: 128"),
    _trap("product-k-130", "products.product_k_130", "a product that contracts 130; fixed: 128"),
    _trap("decode-product", "products.decode_product", "a product of four rows"),
    _trap("heads-of-64", "products.heads_of_64", "16 attention heads of 64; fixed: 8 of 128"),
    _trap(
        "full-precision-products",
        "products.full_precision_products",
        "32-bit products of default precision; fixed: 16-bit",
    ),
    _trap("vocabulary-50257", "products.vocabulary_50257", "50,257 words; fixed: 50,304"),
    _trap("depthwise", "convolutions.depthwise", "a depthwise convolution; fixed: a regular one"),
    _trap("channels-of-60", "convolutions.channels_of_60", "60 channels; fixed: 64"),
    _trap(
        "image-transposes",
        "convolutions.image_transposes",
        "transposes around each convolution; fixed: none",
    ),
    _trap("elementwise-130", "movement.elementwise_130", "arrays of 130 by 130; fixed: 128 by 128"),
    _trap("slices-of-100", "movement.slices_of_100", "slices of 100; fixed: of 128"),
    _trap(
        "tiny-trailing-dimension",
        "movement.tiny_trailing_dimension",
        "arrays that end in 8 by 10; fixed: 8 by 16",
    ),
)

# More programs to tune on, for rules with too few programs in the tuning half.
TUNED_PAIRS = (
    _healthy("embedding", "tuned.embedding", "rows of a large table are gathered"),
    _healthy("filtered-tokens", "tuned.filtered_tokens", "a mean over a mask"),
    _trap("small-table", "tuned.small_table", "rows of a table of 32; fixed: a one-hot product"),
    _cause(
        "sorted-tokens",
        "tuned.sorted_tokens",
        "tokens are sorted by their expert; fixed: counted",
        *_SHUFFLING,
    ),
    _cause(
        "swapped-axes",
        "tuned.swapped_axes",
        "a result with its axes swapped; fixed: as computed",
        "transpose-overhead",
    ),
    _cause(
        "stacked-results",
        "tuned.stacked_results",
        "results of a scan are stacked along the last axis; fixed: the first",
        "transpose-overhead",
        *_SHUFFLING,
    ),
    _cause(
        "differences",
        "tuned.differences",
        "differences of all pairs are kept; fixed: summed up at once",
        "broadcast-overhead",
        "unfused-operators",
    ),
    _cause(
        "head-major-keys",
        "tuned.head_major_keys",
        "keys by position and head; fixed: by head and position",
        "transpose-overhead",
    ),
    _cause(
        "time-major",
        "tuned.time_major",
        "a recurrence over arrays by sample and time; fixed: by time and sample",
        "transpose-overhead",
    ),
    _cause(
        "sequences-by-sample",
        "tuned.sequences_by_sample",
        "a recurrence over sequences by sample and time; fixed: by time and sample",
        "transpose-overhead",
    ),
    _cause(
        "transposed-input",
        "tuned.transposed_input",
        "an input that is transposed first; fixed: given as it is used",
        "transpose-overhead",
    ),
    _cause(
        "transposed-layers",
        "tuned.transposed_layers",
        "weights by output and input; fixed: by input and output",
        "transpose-overhead",
    ),
    _cause(
        "overlapping-pool",
        "tuned.overlapping_pool",
        "training with maximum pooling of overlapping windows; fixed: average pooling",
        "max-pool-gradient",
    ),
    _cause(
        "ranked-scores",
        "tuned.ranked_scores",
        "the best scores by a full sort; fixed: by an approximate maximum",
        *_SORTING,
    ),
    _cause(
        "clipped-at-quantile",
        "tuned.clipped_at_quantile",
        "rows are sorted for a quantile; fixed: their deviation",
        *_SORTING,
    ),
    _cause(
        "rows-in-loop",
        "tuned.rows_in_loop",
        "rows are gathered in each step of a loop; fixed: all at once",
        *_SHUFFLING,
        "short-loop-trips",
        still_true=("short-loop-trips",),  # as tiny-trips shows, unrolling this loop helps
    ),
    _cause(
        "tiny-trips",
        "tuned.tiny_trips",
        "a loop of 256 small trips; fixed: eight at once",
        "short-loop-trips",
    ),
    _cause(
        "scanned-blocks",
        "tuned.scanned_blocks",
        "a scan over twelve layers stacks their gradients; fixed: three layers in each step",
        *_SHUFFLING,
        "short-loop-trips",
    ),
    _cause(
        "expanded-product",
        "tuned.expanded_product",
        "a product by an expanded factor; fixed: by einsum",
        "broadcast-overhead",
    ),
    _cause(
        "nearest-codes",
        "tuned.nearest_codes",
        "distances by differences of all pairs; fixed: by products",
        "broadcast-overhead",
    ),
    _cause(
        "wide-activations",
        "tuned.wide_activations",
        "activations in 32 bits; fixed: in 16",
        "full-precision-compute",
    ),
    _cause(
        "wide-attention",
        "tuned.wide_attention",
        "attention on 32-bit arrays; fixed: 16-bit arrays",
        "full-precision-compute",
    ),
    _healthy("greedy-tokens", "tuned.greedy_tokens", "each word is looked up for the next one"),
    _cause(
        "recomputed-attention",
        "tuned.recomputed_attention",
        "attention is recomputed although memory is free; fixed: kept",
        "recompute",
    ),
    _cause(
        "copied-cache",
        "decoding.copied_cache",
        "a cache whose memory is not donated; fixed: donated",
        "undonated-arguments",
    ),
    _cause(
        "cache-by-where",
        "decoding.cache_by_where",
        "a token is put into a cache by a choice over all positions; fixed: by an update in place",
        "rewritten-arrays",
    ),
    _cause(
        "wide-cache",
        "decoding.wide_cache",
        "a cache in 32 bits; fixed: in 16",
        "full-precision-compute",
    ),
    _cause(
        "widened-weights",
        "decoding.widened_weights",
        "8-bit weights are scaled in 32 bits before each product; fixed: after it",
        "widened-weights",
    ),
    _cause(
        "weights-in-16-bits",
        "decoding.weights_in_16_bits",
        "a few rows by 16-bit weights; fixed: by 8-bit weights",
        "wide-weights",
    ),
    _cause(
        "reordered-cache",
        "decoding.reordered_cache",
        "all of a cache is reordered by beam; fixed: what follows the prompt",
        "rewritten-arrays",
        *_SHUFFLING,
    ),
    _cause(
        "wrong-axis",
        "partitioned.wrong_axis",
        "layers that are split by what they contract; fixed: by their hidden features",
        "exposed-communication",
        "excess-work",
        chips=4,
    ),
    _cause(
        "whole-batch-on-each-chip",
        "partitioned.whole_batch_on_each_chip",
        "each chip computes all of a batch; fixed: its part",
        "excess-work",
        chips=4,
    ),
    _trap(
        "gradients-in-16-bits",
        "partitioned.gradients_in_16_bits",
        "gradients are reduced in 32 bits behind other work; fixed: in 16",
        chips=4,
    ),
    _cause(
        "sliced-convolution",
        "unused.sliced_convolution",
        "every other result of a convolution is dropped; fixed: never computed",
        "excess-work",
    ),
    _cause(
        "dense-table-update",
        "unused.dense_table_update",
        "all rows of a table are updated; fixed: those that were looked up",
        "rewritten-arrays",
    ),
    _cause(
        "order-of-products",
        "unused.order_of_products",
        "an activation by the product of two factors; fixed: by one after the other",
        "excess-work",
    ),
    _cause(
        "many-updates",
        "unused.many_updates",
        "an optimizer over 256 small arrays; fixed: over one",
        "many-small-kernels",
    ),
    _cause(
        "one-hot-routing",
        "unused.one_hot_routing",
        "tokens go to experts by products with one-hot matrices; fixed: by index",
        "excess-work",
    ),
)

_NEEDLESS = {
    "masked-positions": "scores of positions that the loss leaves out; fixed: of the others",
    "examples-in-loop": "examples one by one; fixed: at once",
    "second-forward": "a second forward pass for the accuracy; fixed: scores of the first",
    "pages-by-one-hot": "pages by a product with one-hot rows; fixed: by index",
    "chosen-by-where": "layers whose results are seldom chosen; fixed: in a branch",
    "tiny-systems": "factorizations of tiny matrices; fixed: a formula",
    "tokens-by-all-experts": "each token by all experts; fixed: by one",
    "gradients-times-zero": "gradients that are multiplied by zero; fixed: never computed",
    "shared-by-examples": "what all examples share for each of them; fixed: once",
    "summed-after-expanding": "a layer on all pairs joined; fixed: the sum of two layers",
}
NEEDLESS_PAIRS = tuple(
    _cause(name, f"needless.{name.replace('-', '_')}", cause, "excess-work")
    for name, cause in _NEEDLESS.items()
)

_TWINS: dict[str, tuple[str, tuple[str, ...], tuple[tuple[str, tuple[int, ...]], ...]]] = {
    "sampled-correlations": (
        "correlations are sampled by gathers; fixed: by products",
        ("excess-work",),
        (
            ("v6e", (1, 32, 48, 64, 3)),
            ("v5p", (4, 24, 32, 256, 4)),
            ("v5e", (1, 64, 64, 96, 2)),
            ("v6e", (2, 40, 56, 128, 3)),
        ),
    ),
    "selective-states": (
        "all states of a recurrence are written; fixed: they stay on the chip",
        ("excess-work",),
        (
            ("v5e", (2, 512, 512, 16)),
            ("v6e", (8, 256, 1024, 8)),
            ("v5p", (1, 2048, 512, 16)),
            ("v6e", (4, 512, 768, 32)),
        ),
    ),
    "clipped-examples": (
        "gradients by example are clipped; fixed: only their norms are computed",
        ("excess-work",),
        (
            ("v5e", (32, 64, 512, 1024)),
            ("v5p", (64, 128, 768, 3072)),
            ("v6e", (64, 32, 256, 1024)),
            ("v5e", (16, 128, 512, 2048)),
        ),
    ),
    "expert-places": (
        "places in queues by one long sum; fixed: by sums of blocks",
        ("excess-work",),
        (
            ("v5e", (8192, 64, 1024)),
            ("v5p", (65_536, 32, 512)),
            ("v6e", (32_768, 128, 512)),
            ("v5e", (4096, 256, 2048)),
        ),
    ),
    "unfolded-images": (
        "a convolution by patches; fixed: as such",
        ("excess-work",),
        (
            ("v6e", (32, 56, 64, 128, 3)),
            ("v5p", (16, 28, 128, 256, 5)),
            ("v5e", (8, 64, 96, 96, 3)),
            ("v6e", (64, 32, 64, 64, 5)),
        ),
    ),
    "split-heads": (
        "small layers are split over the chips; fixed: the batch is",
        _EXPOSED,
        (
            ("v6e", (64, 196, 384, 6, 4)),
            ("v5p", (32, 128, 512, 8, 4)),
            ("v5e", (64, 64, 768, 12, 8)),
            ("v6e", (32, 256, 640, 10, 4)),
        ),
    ),
}
TWINS = tuple(
    _cause(
        f"{name}-{number}",
        f"twins.{name.replace('-', '_')}",
        cause,
        *first,
        chips=sizes[-1] if first == _EXPOSED else 1,
        sizes=sizes,
        generations=(generation,),
        still_true=first if first == _EXPOSED else (),
    )
    for name, (cause, first, variants) in _TWINS.items()
    for number, (generation, sizes) in enumerate(variants, start=1)
)

PAIRS = (*DRAWN_PAIRS, *TUNED_PAIRS, *NEEDLESS_PAIRS, *TWINS)


def _tests_by_lot(kind: Kind) -> frozenset[str]:
    """Half of the programs of a kind, by a draw that was made before they were compiled."""
    names = sorted(pair.name for pair in DRAWN_PAIRS if pair.kind == kind)
    return frozenset(random.Random(2026).sample(names, len(names) // 2))


_TESTS = _tests_by_lot("cause") | _tests_by_lot("trap") | _tests_by_lot("healthy")


def generations_of(pair: CompiledPair) -> tuple[str, ...]:
    """The generations in the order in which a pair is compiled for them, by lot."""
    if pair.generations:
        return pair.generations
    if pair in TUNED_PAIRS or pair in NEEDLESS_PAIRS:
        return GENERATIONS
    names = sorted(pair.name for pair in DRAWN_PAIRS)
    random.Random(2026).shuffle(names)
    first = names.index(pair.name) % len(GENERATIONS)
    return (*GENERATIONS[first:], *GENERATIONS[:first])


def split_of(pair: CompiledPair) -> Split:
    """The half that a pair belongs to: a test becomes a tuning pair when it reveals a bug."""
    return "test" if pair.name in _TESTS and not pair.has_shown_a_bug else "tune"


def pair_named(name: str) -> CompiledPair:
    """A pair by name; raises KeyError for an unknown name."""
    return {pair.name: pair for pair in PAIRS}[name]
