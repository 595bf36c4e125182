"""Backups of a cluster's Slurm: taken on the controller, kept in a file or a bucket, and restored."""
