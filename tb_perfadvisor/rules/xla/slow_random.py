"""Random numbers that take long to draw."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Finding, Remedy
from tb_perfadvisor.rules.xla.costly_operations import costly_operations
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation

_REMEDIES = (
    Remedy(
        text="Use the hardware's generator.",
        snippet="jax.config.update('jax_default_prng_impl', 'rbg')",
        framework="jax",
        reference="https://docs.jax.dev/en/latest/jax.random.html",
    ),
    Remedy(
        text="Draw uniform numbers where they serve, and sample fewer classes.",
        snippet="keep = tf.random.uniform(tf.shape(x)) < rate  # not tf.random.categorical",
        framework="tensorflow",
        reference="https://cloud.google.com/tpu/docs/performance-guide",
    ),
)


class SlowRandom(Rule):
    """Drawing random numbers takes a good part of the step.

    What it finds
    -------------
    Operations of normal, categorical and similar distributions, and of the generator Threefry, by
    what the framework calls them.

    Why it matters
    --------------
    Bits, uniform and Bernoulli numbers are quick on a TPU. A normal distribution takes an inverse
    error function, a categorical one a logarithm for each class, and JAX's default generator
    computes what the hardware's own would draw at once.

    How it is measured
    ------------------
    All their time in which the core executes nothing else is high; expected is half of it, as
    numbers are drawn yet; low is 0.

    When to ignore
    --------------
    When the same numbers are wanted on every kind of device: the hardware's generator gives others.

    How to verify
    -------------
    The operations take less time; no `threefry` is left among their names.

    References:
    ----------
    Google Cloud, "Cloud TPU performance guide", on random numbers; JAX documentation,
    "jax.random", on generators.
    """

    id = "slow-random"
    title = "Draw random numbers the quick way"
    category = "xla"
    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS)

    minimum_share = Limit(
        0.02, "share", "Dropout with a quick generator takes less than a fiftieth of a step."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when they take a good part of the step."""
        return costly_operations(
            signals,
            is_slow_random,
            what="draws random numbers",
            noun="operation",
            remaining=0.5,
            minimum_share=self.minimum_share,
            remedies=_REMEDIES,
        )


_SLOW = (
    r"(?i)(?:^|[/(_])(?:threefry_?2x32|gumbel|multinomial|randomstandardnormal"
    r"|statelessrandomnormal\w*|statelessmultinomial|truncatednormal|randomgamma|randompoisson)"
    r"|jit\(_?(?:truncated_)?(?:normal|gamma|poisson|beta|dirichlet)(?:_real)?\)"
)


def is_slow_random(operation: XlaOperation) -> bool:
    """Whether an operation draws from a distribution, or with a generator, that takes long."""
    return re.search(_SLOW, operation.path) is not None
