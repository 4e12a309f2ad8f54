"""What the collectives of the used window are for."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.signals.core.collectives import Mask
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.collective_roles import CollectiveRoles, Role, collective_roles
from tb_perfadvisor.signals.ranks.ranks import collectives_of
from tb_perfadvisor.signals.signals import Signals


@memoized
def window_roles(signals: Signals) -> CollectiveRoles:
    """What each collective of the used window is for, by row of `collectives_of`."""
    roles = collective_roles(signals)
    slot = np.searchsorted(signals.trace.collectives.row, collectives_of(signals).row)
    return CollectiveRoles(roles.role[slot], roles.evidence[slot], roles.texts)


def has_role(signals: Signals, *roles: Role) -> Mask:
    """Which collectives of the used window are for one of some things; shape (n,)."""
    return window_roles(signals).is_for(*roles)
