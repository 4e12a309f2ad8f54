"""Adds labels and step markers to profiles with one line in the training script.

There is one module per framework. It imports the framework only when it is used.
"""
