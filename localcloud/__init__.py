"""The local cloud simulates a cloud provider on this host: an agent with an API, and its machines.

It uses only the standard library.
"""
