"""Brings a machine from bare to ready: roles, their steps, and the report of each."""
