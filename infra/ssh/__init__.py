"""The benchmark over SSH: two ways to a login machine that is not this machine.

`shells.RemoteShell` uses pulumi-command's own SSH client, `shells.OpenSshShell` the engineer's `ssh`, which
also knows ProxyCommand (Session Manager, Identity-Aware Proxy). Both run the same lines on the login machine
(`lines`), know it by the host keys that the cluster published (`hostkeys`), and never see a private key: that
stays with the agent, or in a file that only `ssh` reads.
"""
