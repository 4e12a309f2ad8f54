"""The user's code: from lines that a profile names to files of a repository."""

from tb_perfadvisor.sources.attach import with_sources
from tb_perfadvisor.sources.repository import Repository

__all__ = ["Repository", "with_sources"]
