"""Turns planes into tracks, events and attributes of a trace."""
