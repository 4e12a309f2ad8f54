"""Decides what differs between runs: verdicts, credit for changes, and profiles within their run.

A comparison is a pure function of the facts of each run.
"""
