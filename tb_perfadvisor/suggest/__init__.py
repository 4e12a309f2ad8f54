"""Patches for findings whose fix is mechanical. Needs the extra `suggest` (libcst)."""

from tb_perfadvisor.suggest.suggestions import Suggestion, suggest

__all__ = ["Suggestion", "suggest"]
