"""Calls of OpenSSH's programs, for the commands and for the stacks' resources."""
