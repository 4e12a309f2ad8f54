"""The report of a capture: built from an analysis, rendered in several formats."""
