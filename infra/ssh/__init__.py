"""The benchmark over SSH, on a login machine that is not this machine.

There are two ways. `shells.OpenSshShell` uses the engineer's `ssh`, which also knows ProxyCommand (Session
Manager, Identity-Aware Proxy). `shells.RemoteShell` uses pulumi-command's own SSH client; it stays for the
clusters that were brought up with it, and its docstring says why.

Both run the same lines on the login machine (`lines`) and recognize the machine by the host keys that the
cluster published (`hostkeys`). Neither sees a private key: the key stays with the SSH agent, or in a file
that only `ssh` reads.
"""
