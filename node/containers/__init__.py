"""Containers that jobs run in: the settings for Slurm, and the program that starts a task's container."""
