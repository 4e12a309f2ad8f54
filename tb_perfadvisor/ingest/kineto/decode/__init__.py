"""Decodes a Kineto file into columns of events."""
