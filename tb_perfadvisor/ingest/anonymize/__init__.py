"""Writes copies of profiles for bug reports, without the names of the user."""
