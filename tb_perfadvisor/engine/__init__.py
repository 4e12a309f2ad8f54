"""Runs rules over signals: configuration, isolation, cache."""
