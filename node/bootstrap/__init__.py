"""The boot of a machine: the steps of each role, and the boot report."""
