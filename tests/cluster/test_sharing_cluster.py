"""A team's accounts, limits and preemption on a real Slurm: they are the stack file's, and hold."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator

import pytest

from infra.errors import EXIT_REFUSED
from operations.local import system_packages
from tests.support.checkout import Checkout, running, until

pytestmark = pytest.mark.skipif(
    bool(system_packages.missing(system_packages.ACCOUNTING)),
    reason=f"packages are missing: {', '.join(system_packages.missing(system_packages.ACCOUNTING))}",
)
INTERACTIVE = """
          - {name: interactive, shares: 25, qos: [urgent, low], limits: {grp_tres: {gres/gpu: 4}}}"""
BUDGET = "budget: {max_hours: 0.0001}"
WHY = (
    "0.0001 node-hours are spent by research (accounts.research.budget.max_hours in Pulumi.test.yaml); "
    "raise it and run up again"
)
STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 2}, default: true, exclusive: true}
          - name: gpu
            instance_type: local.medium
            accelerator: {type: v100, count: 1}
            nodes: {max: 2}
            allow_accounts: [research%s]
        slurm: {suspend_time: 20, accounting: true}
        accounts:
          - name: research
            description: Research's half
            shares: 50
            qos: [normal, urgent, low]
            limits: {grp_tres: {cpu: 100, mem: 100000}, max_wall: "2-00:00:00"}
          - {name: vision, parent: research, limits: {max_jobs: 5}}
          - {name: rest}%s
        users:
          - {name: %s, account: research, accounts: [vision, rest%s]}
          - {name: ada, account: vision, shares: 3}
        qos:
          - {name: urgent, priority: 100, preempts: [low], limits: {max_tres_per_user: {gres/gpu: 1}}}
          - {name: low, usage_factor: 0.5}
      slurm-stacks:benchmark: {enabled: false}
"""


def stack(owner: str, interactive: bool = True) -> str:
    also = ", interactive" if interactive else ""
    return STACK % (also, INTERACTIVE if interactive else "", owner, also)


@pytest.fixture(scope="module")
def owner() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, owner: str) -> Iterator[Checkout]:
    """One cluster for all tests of this file, which run in order."""
    with running(tmp_path_factory.mktemp("sharing") / "a checkout", stack(owner)) as checkout:
        yield checkout


def submit(cluster: Checkout, *options: str, script: str = "sleep 600") -> str:
    return cluster.ask("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", script).strip()


def shown(cluster: Checkout, job: str) -> tuple[str, str]:
    """Return a job's state and reason."""
    state, reason = cluster.ask("squeue", "-h", "-t", "all", "-j", job, "-o", "%T %r").split(maxsplit=1)
    return state, reason.strip()


def until_shown(cluster: Checkout, job: str, state: str, reason: str) -> None:
    until(lambda: shown(cluster, job) == (state, reason), 120, f"{state} {reason} of job {job}")


def cancel(cluster: Checkout, *jobs: str) -> None:
    cluster.ask("scancel", *jobs)
    until(lambda: not cluster.ask("squeue", "-h", "-j", ",".join(jobs)).split(), 120, "the jobs' end")


def listed(cluster: Checkout, what: str, columns: str) -> list[str]:
    return cluster.ask("sacctmgr", "-nP", "list", what, "wopl", f"format={columns}").splitlines()


def test_slurm_has_what_the_stack_file_says(cluster: Checkout, owner: str) -> None:
    limits = "account,parentname,user,fairshare,qos,grptres,maxwall,maxjobs"
    assert [
        line for line in listed(cluster, "association", limits) if not line.startswith(("root", "users"))
    ] == [
        "interactive|root||25|low,urgent|gres/gpu=4||",
        f"interactive||{owner}|1||||",
        "research|root||50|low,normal,urgent|cpu=100,mem=100000M|2-00:00:00|",
        f"research||{owner}|1||||",
        "vision|research||1||||5",
        "vision||ada|3||||",
        f"vision||{owner}|1||||",
        "rest|root||1||||",
        f"rest||{owner}|1||||",
    ]
    columns = "name,priority,preempt,usagefactor,maxtresperuser"
    assert cluster.ask("sacctmgr", "-nP", "list", "qos", f"format={columns}").splitlines() == [
        "normal|0||1.000000|",
        "urgent|100|low|1.000000|gres/gpu=1",
        "low|0||0.500000|",
    ]
    config = cluster.ask("scontrol", "show", "config")
    for option in ("priority/multifactor", "preempt/qos", "associations,limits,qos"):
        assert option in config


def test_a_limit_holds_in_slurms_words(cluster: Checkout) -> None:
    gpu = ("--partition=gpu", "--gres=gpu:1", "--qos=urgent", "--account=interactive")
    first, second = submit(cluster, *gpu), submit(cluster, *gpu)
    until_shown(cluster, second, "PENDING", "QOSMaxGRESPerUser")
    cancel(cluster, first, second)
    for refused in (("--account=nosuch",), ("--qos=nosuch",), ("--account=interactive", "--qos=normal")):
        tried = cluster.execute("sbatch", *refused, "--wrap", "true", check=False)
        assert "Submitted" not in tried


def test_nobody_makes_way_while_a_node_that_is_off_will_do(cluster: Checkout) -> None:
    """Slurm itself prefers nodes that are powered down; where there is none, the job makes way at once."""
    until(
        lambda: cluster.ask("sinfo", "-h", "-p", "debug", "-o", "%t").split() == ["idle~"], 180, "nodes off"
    )
    low = submit(cluster, "--qos=low")
    until_shown(cluster, low, "RUNNING", "None")
    urgent = submit(cluster, "--qos=urgent")
    until_shown(cluster, urgent, "RUNNING", "None")
    assert shown(cluster, low) == ("RUNNING", "None"), "it was off"
    more = submit(cluster, "--qos=urgent")
    until_shown(cluster, more, "RUNNING", "None")
    assert shown(cluster, low)[0] == "PENDING"
    assert cluster.ask("sacct", "-nPXD", "-j", low, "--format=state").split()[0] == "PREEMPTED"
    cancel(cluster, low, urgent, more)


@pytest.mark.wide
def test_nobody_makes_way_in_vain_for_a_pool_that_is_shut(cluster: Checkout) -> None:
    """Nodes that are drained because the cloud has no machines cannot serve the job, whoever makes way."""
    until(
        lambda: cluster.ask("sinfo", "-h", "-p", "debug", "-o", "%t").split() == ["idle~"], 180, "nodes off"
    )
    cluster.ask("scontrol", "update", "nodename=debug-1", "state=drain", "reason=capacity")
    low = submit(cluster, "--qos=low")
    until_shown(cluster, low, "RUNNING", "None")
    wide = submit(cluster, "--qos=urgent", "--nodes=2")
    until(lambda: shown(cluster, wide)[1] != "None", 60, "a reason")
    asked = cluster.ask("squeue", "-h", "-j", wide, "-o", "%V")
    until(lambda: _looked_at(cluster, wide), 120, f"a look of the scheduler since {asked}")
    assert shown(cluster, low) == ("RUNNING", "None")
    cancel(cluster, wide, low)
    cluster.ask("scontrol", "update", "nodename=debug-1", "state=resume")


def _looked_at(cluster: Checkout, job: str) -> bool:
    text = cluster.ask("scontrol", "-o", "show", "job", job)
    fields = dict(word.partition("=")[::2] for word in text.split())
    return fields["LastSchedEval"] > fields["SubmitTime"]


def test_what_people_added_stays_and_jobs_keep_their_account(cluster: Checkout, owner: str) -> None:
    for words in (("account", "theirs"), ("user", "ada", "account=theirs")):
        cluster.ask("sacctmgr", "-i", "add", *words)
    job = submit(cluster, "--hold", "--account=interactive", "--qos=low")
    changed = stack(owner, interactive=False).replace("max_jobs: 5", "max_jobs: 6")
    cluster.write_stack(changed.replace("shares: 50", f"shares: 50\n            {BUDGET}"))
    refused = cluster.cluster("up")
    assert refused.returncode == EXIT_REFUSED
    assert f"job {job} " in refused.stderr
    assert "accounts removed: interactive" in refused.stderr
    cancel(cluster, job)
    said = cluster.cluster("up", check=True).stderr
    assert "accounts changed: vision: limits.max_jobs 5 → 6: applied to the running cluster" in said
    assert "accounts changed: vision: maxjobs=6" in said
    assert "accounts changed: research: budget.max_hours none → 0.0001: applied to the running" in said
    stays = "added with sacctmgr, and stays (slurm.exclusive_accounts: true takes it away)"
    assert f"{stays}: account theirs, user ada in account theirs" in said
    assert f"removed: user {owner} in account interactive, account interactive" in said
    assert "nothing to do" in cluster.cluster("up", check=True).stderr
    names = {line.split("|")[0] for line in listed(cluster, "association", "account")}
    assert names == {"root", "users", "research", "vision", "rest", "theirs"}


def waiting(cluster: Checkout) -> list[str]:
    return cluster.ask("squeue", "-h", "-A", "vision", "-t", "pending", "-o", "%i").split()


def test_who_has_used_a_budget_starts_no_jobs_and_says_why(cluster: Checkout) -> None:
    """The jobs so far have used research's budget; vision is below it."""
    job, other = submit(cluster, "--account=vision"), submit(cluster, "--account=rest")
    until_shown(cluster, job, "PENDING", "AssocGrpJobsLimit")
    until_shown(cluster, other, "RUNNING", "None")

    def cause() -> str:
        (one,) = [one for one in cluster.status()["jobs"] if str(one["id"]) == job]
        return str(one["cause"])

    until(lambda: cause().endswith(WHY), 120, "the cause in the status")
    assert WHY in cluster.ask("scontrol", "show", "job", job)
    (budget,) = cluster.status()["cost"]["accounts"]
    assert (budget["account"], budget["left_hours"]) == ("research", 0.0)
    said = cluster.cluster("cost", "--by", "account", check=True).stdout
    assert (
        "Budget of account research: 0.00 of 0.00 node-hours are left, used up: no job of it starts" in said
    )
    cancel(cluster, other)


def test_a_second_run_writes_nothing(cluster: Checkout) -> None:
    """slurmdbd notes each change of an administrator's: another boot adds none, and lets no account go."""

    def notes() -> list[str]:
        return cluster.ask(
            "sacctmgr", "-nP", "list", "transactions", "format=timestamp,action,where"
        ).splitlines()

    before = notes()
    cluster.ask("scontrol", "ping")
    cluster.cluster("up", check=True)
    assert notes() == before
    assert len(waiting(cluster)) == 1


def test_with_another_budget_jobs_start(cluster: Checkout, owner: str) -> None:
    (job,) = waiting(cluster)
    cluster.write_stack(stack(owner, interactive=False))
    cluster.cluster("up", check=True)
    until_shown(cluster, job, "RUNNING", "None")
    assert [line for line in listed(cluster, "association", "account,grpjobs") if line[-1] != "|"] == []
    cancel(cluster, job)
