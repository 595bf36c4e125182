"""Accounts, users and QOS of a stack file on machines that boot, for tests of what outlives what."""

from __future__ import annotations

import shlex

from tests.support.checkout import Checkout

STACK = """
        accounts:
          - {name: research, shares: 50, qos: [normal, urgent, low], limits: {grp_tres: {cpu: 100}}}
          - {name: vision, parent: research, default_qos: low, limits: {max_jobs: 50}}
        users:
          - {name: ada, id: 2101, account: vision, accounts: [research]}
          - {name: bob, id: 2102, account: research, admin_level: operator}
        qos:
          - {name: urgent, priority: 100, preempts: [low], limits: {max_jobs_per_user: 5}}
          - {name: low, usage_factor: 0.5}"""
"""Sections of a stack file: users whom the stack makes, in accounts with limits."""
RECORD = "/var/spool/slurmctld/slurm-stacks-sharing.json"
"""What `up` has added (`node.accounting.apply`)."""


def known(cluster: Checkout) -> list[str]:
    """Return what slurmdbd has of accounts, users and QOS, and what of it the record says is the stack's."""
    asked = (
        ("association", "wopl", "format=account,parentname,user,fairshare,qos,defaultqos,grptres,maxjobs"),
        ("user", "format=user,defaultaccount,adminlevel"),
        ("qos", "format=name,priority,preempt,usagefactor,maxjobsperuser"),
    )
    lines = [line for words in asked for line in cluster.execute("sacctmgr", "-nP", "list", *words).split()]
    return [*sorted(lines), cluster.execute("cat", RECORD)]


def submit(cluster: Checkout, user: str, *options: str) -> str:
    """Submit a held job as a user who logs in, and return its id, or why Slurm refuses it."""
    words = ("sbatch", "--parsable", "--hold", "--output=/dev/null", *options, "--wrap", "true")
    line = f"{shlex.join(words)} 2>&1 || true"
    return cluster.execute("su", "-", user, "-c", line).strip()


def holds(cluster: Checkout) -> None:
    """Check that accounts, users and QOS are enforced as `STACK` says."""
    job = submit(cluster, "ada")
    asked = ("squeue", "--noheader", "--format=%u %a %q", f"--jobs={job}")
    assert cluster.execute(*asked).split() == ["ada", "vision", "low"]
    cluster.execute("scancel", job)
    assert "Invalid account" in submit(cluster, "bob", "--account=vision")
    assert "Invalid qos" in submit(cluster, "ada", "--qos=nosuch")
