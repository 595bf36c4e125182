"""Slurm's accounts: who may submit, with which shares and limits."""
