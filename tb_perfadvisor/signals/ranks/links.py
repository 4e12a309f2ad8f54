"""The link between ranks."""

from __future__ import annotations

from tb_perfadvisor.signals.signals import Signals

DEVICES_PER_NODE = 8
"""The most GPUs that servers commonly hold; a profile may list fewer than the node has."""


def link_bandwidth_bytes_per_s(signals: Signals) -> float | None:
    """Bandwidth of the link that the user names, else of the device's link within the node.

    None where GPUs of several nodes take part: no profile describes the network between them.
    """
    if signals.options.link_bandwidth_bytes_per_s is not None:
        return signals.options.link_bandwidth_bytes_per_s
    facts = signals.device_facts
    if facts is None or (facts.kind == "gpu" and _spans_nodes(signals)):
        return None
    return facts.link_bandwidth_bytes_per_s


def is_within_a_node(signals: Signals) -> bool:
    """Whether the ranks are GPUs of one node, as far as the profile tells."""
    facts = signals.device_facts
    is_given = signals.options.link_bandwidth_bytes_per_s is not None
    return facts is not None and facts.kind == "gpu" and not is_given and not _spans_nodes(signals)


def _spans_nodes(signals: Signals) -> bool:
    hosts = {source.host for source in signals.run.sources if source.host}
    ranks = signals.trace.source.world_size or len(signals.run.traces)
    return len(hosts) > 1 or ranks > max(len(signals.trace.devices), DEVICES_PER_NODE)
