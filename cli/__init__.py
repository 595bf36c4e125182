"""Runs on the engineer's machine: the commands, and what they ask clouds, machines and the engine."""
