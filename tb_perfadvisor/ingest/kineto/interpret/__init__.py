"""Turns the columns of a Kineto file into events and attributes of a trace."""
