"""Helpers that tests and benchmarks of several folders share."""
