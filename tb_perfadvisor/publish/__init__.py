"""Writes findings as Text and Scalar summaries, for TensorBoard servers without plugins."""

from tb_perfadvisor.publish.directory import publish

__all__ = ["publish"]
