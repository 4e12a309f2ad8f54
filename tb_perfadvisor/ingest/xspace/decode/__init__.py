"""Decodes the bytes of an XSpace into planes, lines and columns of events."""
