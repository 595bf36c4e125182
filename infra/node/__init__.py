"""Runs on the cluster's machines, packed as one archive. Standard library only, Python 3.11 or newer."""
