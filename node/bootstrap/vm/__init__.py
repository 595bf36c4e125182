"""The parts of `machine_steps` for Ubuntu 24.04 with systemd: packages, disks, drivers, mounts, names, users.

What they need to know of the cluster is in `node.design.model.Site` and in its `cloud` (`node.design.sites`).
"""
