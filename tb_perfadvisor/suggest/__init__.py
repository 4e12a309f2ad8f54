"""Patches for findings whose fix is mechanical."""

from tb_perfadvisor.suggest.suggestions import Suggestion, suggest

__all__ = ["Suggestion", "suggest"]
