"""The benchmark over SSH, on a login machine that is not this machine.

`shells.OpenSshShell` declares commands of `operations/ssh.py`, which use the engineer's `ssh`, directly or
through a ProxyCommand (Session Manager, Identity-Aware Proxy), and recognize the machine by the host keys
that the cluster published. No private key is seen: it stays with the SSH agent, or in a file that only `ssh`
reads.
"""
