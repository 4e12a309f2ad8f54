"""Findings as Text and Scalar summaries, for viewers of TensorBoard that load no plugins."""

from tb_perfadvisor.publish.directory import publish

__all__ = ["publish"]
