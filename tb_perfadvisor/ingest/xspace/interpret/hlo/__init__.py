"""Reads XLA programs: opcodes, shapes, layouts, device groups, and what fusions contain."""
