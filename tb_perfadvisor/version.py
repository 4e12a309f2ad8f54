"""The version, told here alone: to ask what is installed takes longer than to write a report."""

from typing import Final

VERSION: Final = "0.1.0"
