"""Whether enough checks could run for their silence to mean something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tb_perfadvisor.engine.analysis import BlindSpot, RuleOutcome

ENOUGH_SHARE = 1 / 3
"""An ordinary profile without memory, stacks or shapes allows about half of the checks. Sums alone
allow a twelfth."""


def blind_spot(outcomes: Sequence[RuleOutcome]) -> BlindSpot | None:
    """Why most checks could not run; None if at least a third of them did.

    Checks that cannot concern the program, or that no recorder allows, do not count.

    Args:
        outcomes: Of all rules.
    """
    looked = sum(outcome.status in ("found", "passed") for outcome in outcomes)
    unseen = [outcome for outcome in outcomes if outcome.lacks_recording]
    checks = looked + len(unseen)
    if not unseen or looked >= ENOUGH_SHARE * checks:
        return None
    reasons = Counter(reason for o in unseen for reason in {gap.reason for gap in o.missing})
    (reason, _), *_ = reasons.most_common(1)
    return BlindSpot(looked, checks, reason)
