"""A matrix of weights is copied for each row that is multiplied."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import costly_work
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.savings.at_best import at_best_also
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.gathered_matrices import gathered_matrices


class GatheredWeights(Rule):
    """The program copies a matrix for each row, although it has only a few matrices.

    What it finds
    -------------
    Tables of matrices that are indexed with a choice for each row, such as an expert for each
    token, and batched products that multiply each row by its own copy.

    Why it matters
    --------------
    The copies take far more memory and time than the products. Rows that chose the same matrix can
    be multiplied by it together, as one product that reads it once.

    How it is measured
    ------------------
    By shapes: the product's operand holds matrices of the size of the table's, and more of them
    than the table. Expected is the time of the copies, low is half of it. High also includes the
    products, which then read few matrices instead of one for each row.

    When to ignore
    --------------
    When each row really has a matrix of its own.

    How to verify
    -------------
    The gather is gone from the next profile, and peak memory is lower.

    References:
    ----------
    Gale et al., "MegaBlocks: Efficient Sparse Training with Mixture-of-Experts" (MLSys 2023);
    PyTorch documentation, torch.nn.functional.grouped_mm.
    """

    id = "gathered-weights"
    title = "Multiply rows that share a matrix together"
    category = "compute"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.LAUNCH_LINKS, Need.SHAPES, Need.PYTORCH)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "Sorting the rows costs some launches, which must be worth it."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when copies of matrices take a good part of the step."""
        found, events = gathered_matrices(signals), signals.trace.events
        if not len(found.rows):
            return
        gone = np.zeros(len(found.rows), dtype=np.int64)
        half = events.duration_ns[found.rows] // 2
        saving = faster_device_work(signals, found.rows, gone, basis="modeled", most_then_ns=half)
        copies_ns = saving.claimed_ns
        if self.is_minor(copies_ns, signals):
            return
        products = found.products
        matrices, made = found.tables[0]
        yield Finding(
            instance=f"{made:,} copies of {matrices} matrices",
            summary=(
                f"{per_step(copies_ns, signals)} goes into copying a matrix for each row"
                f" ({count_per_step(len(found.rows), 'kernel', signals)}): {made:,} matrices are"
                f" made of {matrices}, and each is multiplied by one row."
            ),
            saving=at_best_also(signals, saving, products, events.duration_ns[products]),
            evidence=costly_work("copies of matrices", signals, found.rows, saving.claims),
            remedies=advise("grouped-products"),
        )
