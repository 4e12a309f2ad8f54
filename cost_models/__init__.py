"""Fits and checks the models of what work costs. See the README."""
