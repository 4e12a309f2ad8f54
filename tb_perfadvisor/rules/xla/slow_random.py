"""Random numbers that take long to draw."""

from __future__ import annotations

import math
import re

import numpy as np

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.costly_operations import CostlyOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import needed_ns
from tb_perfadvisor.signals.tpu.product_time import product_time_ns
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation

_SLOW = (
    r"(?i)(?:^|[/(_])(?:threefry\w*|gumbel|multinomial|randomstandardnormal"
    r"|statelessrandomnormal\w*|statelessmultinomial|truncatednormal|randomgamma|randompoisson)"
    r"|jit\(_?(?:truncated_)?(?:normal|gamma|poisson|beta|dirichlet)(?:_real)?\)"
)

# Threefry mixes bits by rotations. XLA names the result after what it is used for.
_ROTATIONS = frozenset({"shift-left", "shift-right-logical", "xor"})
_DRAWN = _SLOW + r"|(?i:uniform|bernoulli|random_bits|dropout|randint)"


class SlowRandom(CostlyOperations):
    """Drawing random numbers takes a good part of the step.

    What it finds
    -------------
    Operations of normal, categorical and similar distributions, and of the Threefry generator,
    recognized by the names that the framework gives them, also inside fusions. Fusions that also
    multiply matrices count as far as they take longer than the product.

    Why it matters
    --------------
    Random bits, uniform and Bernoulli numbers are fast on a TPU. A normal distribution needs an
    inverse error function, a categorical one needs a logarithm per class, and JAX's default
    generator computes in software what the hardware generator provides directly.

    How it is measured
    ------------------
    High is the time in which the core executes only these operations, minus what their bytes and a
    product in the same fusion need at the peaks of the data sheet. Expected is at most half of the
    time, because random numbers are still drawn, and leaves 1.3 times what bytes and product
    usually take: the product by a model of what shapes cost, if it knows the device. Of a fusion
    without Threefry's rotations, which another generator feeds, nothing is expected. Low is 0.

    When to ignore
    --------------
    When every kind of device must produce the same numbers: the hardware generator produces others.

    How to verify
    -------------
    The operations take less time, and the profile has `rng-bit-generator` operations instead.

    References:
    ----------
    Google Cloud, "Cloud TPU performance guide", on random numbers; JAX documentation,
    "jax.random", on generators.
    """

    id = "slow-random"
    title = "Use a faster random number generator"

    minimum_share = Limit(0.02, "share", "Dropout with a fast generator takes less than this.")

    activity = "goes into operations that draw random numbers"
    noun = "operation"
    remaining_share = 0.5
    expected_of_best = 1.3
    changes = ("hardware-generator", "cheaper-distributions")

    def selects(self, operation: XlaOperation) -> bool:
        """Whether an operation draws from a slow distribution or with a slow generator."""
        pattern = _DRAWN if operation.inside >= _ROTATIONS else _SLOW
        return any(re.search(pattern, path) for path in operation.paths)

    def remains(self, signals: Signals, operation: XlaOperation) -> float:
        """Nothing is expected where another generator than Threefry draws already."""
        is_fast = operation.inside and not operation.inside >= _ROTATIONS
        return 1.0 if is_fast and "threefry" not in "".join(operation.paths) else 0.5

    def best_ns(
        self, signals: Signals, operation: XlaOperation, *, at_peak: bool = False
    ) -> float | None:
        """The time of the operation without drawing: of its bytes, and of the product inside."""
        memory_ns = needed_ns(signals, operation, at_peak=at_peak)
        if operation.product is None:
            return memory_ns
        product_ns = product_time_ns(signals, operation, at_peak=at_peak)
        # Without the device's rates, nothing tells what drawing adds to the product.
        return math.inf if product_ns is None else float(np.fmax(product_ns, memory_ns))
