"""Shows a plan: machines, partitions and directories, the tree of resources, the cost, and the changes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from cli.console.tables import output, put
from cli.hints import hint
from infra import cost
from infra.config.fields import time_limit_seconds
from node.bootstrap import key_server, report_server
from node.design import names
from node.system import plurals


def show_plan(plan: Mapping[str, Any]) -> None:
    """Print a plan: the overview, the tree of resources, the cost, warnings."""
    console = output()
    if (shown := picture(plan)) is not None:
        put(shown, console)
        console.print()
    tree = Tree(f"[bold]stack {escape(plan['stack'])}[/bold]")
    branches: dict[str, Tree] = {}
    for resource in plan["resources"]:
        if resource["type"] == "pulumi:pulumi:Stack":
            continue
        parent = branches.get(resource["parent"], tree)
        remark = escape(note(resource))
        label = f"{escape(resource['name'])} [dim]{escape(resource['type'])}[/dim] {remark}".rstrip()
        branches[resource["urn"]] = parent.add(label)
    console.print(tree)
    console.print(plurals.count(len(branches), "resource"))
    show_cost(plan["cost"], console)
    if plan.get("slurm"):
        console.print(escape(plan["slurm"]))
    for warning in plan["warnings"]:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}")
    show_changes(plan, console)


def show_changes(plan: Mapping[str, Any], console: Console) -> None:
    """Print what `up` would change in a cluster that is up, and the effect on its jobs."""
    changes, cluster = plan.get("changes"), plan["outputs"].get("cluster")
    if changes is None:
        if isinstance(cluster, Mapping) and cluster.get("provider") != "local":
            console.print("[dim]If the cluster is up, `up` says what it will change before it does it.[/dim]")
        return
    if not changes:
        console.print(
            "The cluster is up and already as the stack file says: `up` would change nothing of it."
        )
        return
    console.print("[bold]The cluster is up. What `up` would change:[/bold]")
    for change in changes:
        console.print(f"  {escape(change['line'])}")
        for line in change.get("lost", ()):
            console.print(f"    lost: {escape(line)}")
        for job in change["jobs"] or ():
            where = job["nodes"] or job["partition"]
            line = f"job {job['id']} {job['name']} ({job['user']}, {job['state']} on {where})"
            console.print(f"    {escape(line)}: [bold]{job['consequence']}[/bold]")
    if any(change["jobs"] is None for change in changes):
        console.print("[yellow]The effect on its jobs is not known: the cluster does not answer.[/yellow]")


def show_cost(bill: Mapping[str, Any], console: Console) -> None:
    """Print the price an hour, idle and at most, and how long the budget lasts.

    Nothing is printed for a plan without a cluster.
    """
    if bill.get("parts") is not None:
        console.print(f"Cost: {escape(cost.sentence(cast('cost.Cost', bill)))}")
    if budget := bill.get("budget"):
        console.print(escape(cost.reach(budget)))


PORTS = {
    22: "SSH",
    names.PORT: "DNS",
    key_server.PORT: "munge key",
    report_server.PORT: "boot reports",
    2049: "NFS",
    988: "Lustre",
    1018: "Lustre",
    6817: "slurmctld",
    6818: "slurmd",
    32768: "srun",
}


def picture(plan: Mapping[str, Any]) -> Group | None:
    """Return machines, partitions and directories with their price an hour.

    `None` means that the plan has no cluster.
    """
    cluster = plan["outputs"].get("cluster")
    if not isinstance(cluster, Mapping):
        return None
    parts = {part["name"]: part for part in plan["cost"].get("parts", [])}
    table = Table(box=None, pad_edge=False, show_header=False, title_justify="left", title_style="bold")
    place = " ".join(filter(None, [cluster["provider"], cluster["zone"] or cluster["region"]]))
    table.title = escape(f"{cluster['name']}: {cluster['scheduler']['name']} on {place}")
    for _ in range(3):
        table.add_column()
    partitions = {f"partition {p['name']}": p for p in cluster["partitions"]}
    partitions |= {
        f"partition {p['name']}/{pool['name']}": {**p, **pool}
        for p in cluster["partitions"]
        for pool in p.get("pools", ())
    }
    prices = {f"partition {pools['partition']}": pools for pools in plan["cost"].get("pools", ())}
    shown: list[str] = []
    for name, part in parts.items():
        whole, _, pool = name.rpartition("/") if name.startswith("partition ") else ("", "", "")
        if whole in prices:
            pools = prices.pop(whole)
            shown.append(whole)
            table.add_row(escape(whole), _of_pools(pools), f"[dim]{_price_of_pools(pools)}[/dim]")
        row = partitions.get(name)
        what = part["what"] if row is None or row.get("nodes_of") else _nodes(row)
        shown.append(f"  pool {pool}" if pool and whole else name)
        table.add_row(escape(shown[-1]), escape(what), f"[dim]{_price(part)}[/dim]")
    additions = plan.get("additions", [])
    # As rows, these long texts would push the prices to the right.
    wide = max(map(len, [*shown, *(addition["name"] for addition in additions)]), default=0)
    lines = [Text(f"{addition['name']:{wide}}  {addition['what']}") for addition in additions]
    if cluster["login"] is not None:
        # It is never broken, so it can be copied. The outputs' own has an address that only `up` knows.
        login = f"{'log in':{wide}}  {hint('ssh', plan['stack'])}"
        lines.append(Text(login, no_wrap=True, overflow="ignore"))
    return Group(table, *lines)


def _nodes(partition: Mapping[str, Any]) -> str:
    """Return, for example: 0–4 × p3dn.24xlarge, each 96 CPUs, 745 GiB, 8 × v100 for jobs up to 24 h.

    The machine itself has more memory, as its cloud says: the system keeps a part of it.
    """
    least, most = partition["min"], partition["max"]
    count = f"{most if least == most else f'{least}–{most}'} × {partition['machine']}"
    parts = [plurals.count(partition["cpus"], "CPU"), f"{partition['memory_mib'] / 1024:.0f} GiB"]
    if accelerator := partition["accelerator"]:
        unit = f"NeuronCores of {accelerator['type']}" if accelerator["gres"] == "neuroncore" else None
        parts.append(f"{accelerator['count']} {unit or '× ' + accelerator['type']}")
    limit = time_limit_seconds(partition["time_limit"])
    longest = "" if limit is None else f" up to {plurals.of_seconds(limit)}"
    if partition.get("nodes_of"):
        return f"the nodes of {partition['nodes_of']} for jobs{longest}"
    return f"{count}{', spot' if partition['spot'] else ''}, each {', '.join(parts)} for jobs{longest}"


def _of_pools(pools: Mapping[str, Any]) -> str:
    """Return what jobs get of a partition's pools."""
    whose = "nodes of any pool" if pools["mixed"] else "nodes of one pool"
    return f"a job gets {whose}, the first in this order that has enough:"


def _price_of_pools(pools: Mapping[str, Any]) -> str:
    """Return the cheapest and the dearest hour of a node, and the dearest of one job."""
    if (least := pools["cheapest"]) is None:
        return "price unknown"
    node = f"{least:.2f} to {pools['dearest']:.2f}" if least != pools["dearest"] else f"{least:.2f}"
    return f"{node} USD a node and hour, a job at most {pools['job']:.2f}"


def _price(part: Mapping[str, Any]) -> str:
    idle, most = part["idle"], part["max"]
    if most is None or idle is None:
        return "price unknown"
    if idle == most:
        return f"{most:.2f} USD an hour"
    return f"{idle:.2f} to {most:.2f} USD an hour"


def note(resource: Mapping[str, Any]) -> str:
    """Return details that a resource's name does not show: the machine, the size, the allowed peers."""
    inputs, kind = resource.get("inputs", {}), resource["type"].rpartition(":")[2]
    if kind in _NOTES:
        return ", ".join(str(part) for part in _NOTES[kind](inputs) if part)
    return ""


_MARKETS = {"spot": "spot", "capacity-block": "Capacity Block"}
"""How EC2 sells machines that are not on demand -> the words for it."""


def _template(inputs: Mapping[str, Any]) -> list[Any]:
    fabric = [i for i in inputs.get("networkInterfaces") or [] if "efa" in i.get("interfaceType", "")]
    target = (inputs.get("capacityReservationSpecification") or {}).get("capacityReservationTarget") or {}
    return [
        inputs.get("instanceType"),
        _MARKETS.get((inputs.get("instanceMarketOptions") or {}).get("marketType") or ""),
        f"{len(fabric)} × EFA" if len(fabric) > 1 else "EFA" if fabric else None,
        f"placement group {inputs['placement']['groupName']}" if inputs.get("placement") else None,
        *(f"reserved: {target[key]}" for key in target),
    ]


def _rule(inputs: Mapping[str, Any]) -> list[Any]:
    port = inputs.get("fromPort")
    what = "everything" if port is None else _ports(int(port), int(inputs.get("toPort") or port))
    peer = inputs.get("cidrIpv4") or inputs.get("cidrIpv6") or inputs.get("referencedSecurityGroupId") or ""
    return [f"{what} {{way}} {_GROUP_ID.sub('', peer)}".strip()]


def _ports(first: int, last: int) -> str:
    """Return, for example: SSH; Lustre 1018–1023; port 80."""
    word = PORTS.get(first)
    if first != last:
        return f"{word or 'ports'} {first}–{last}"
    return word or f"port {first}"


def _google_template(inputs: Mapping[str, Any]) -> list[Any]:
    scheduling = inputs.get("scheduling") or {}
    reserved = (inputs.get("reservationAffinity") or {}).get("specificReservation") or {}
    return [
        inputs.get("machineType"),
        *(f"{gpu['count']} × {gpu['type']}" for gpu in inputs.get("guestAccelerators") or []),
        "spot" if scheduling.get("preemptible") else None,
        "compact placement" if inputs.get("resourcePolicies") else None,
        *(f"reserved: {name}" for name in reserved.get("values") or []),
    ]


def _firewall(inputs: Mapping[str, Any]) -> list[Any]:
    """Return, for example, SSH from 35.235.240.0/20. Machines are named by their service account."""
    ports = [port for rule in inputs.get("allows") or [] for port in rule.get("ports") or []]
    words = list(dict.fromkeys(PORTS.get(int(port.partition("-")[0]), f"port {port}") for port in ports))
    peers = inputs.get("sourceRanges") or inputs.get("sourceServiceAccounts") or []
    machines = [str(peer).partition("@")[0] for peer in peers]
    return [f"{', '.join(words) or 'everything'} from {', '.join(machines)}"]


def _environment(inputs: Mapping[str, Any]) -> list[Any]:
    """Return, for example: tensorflow-gpu-fsx-ce, MANAGED, p3dn.24xlarge, 0–4096 vCPUs."""
    of = inputs.get("computeResources") or {}
    vcpus = f"{of.get('minVcpus')}–{of.get('maxVcpus')} vCPUs, {of.get('desiredVcpus')} desired"
    return [inputs.get("name"), inputs.get("type"), *of.get("instanceTypes", []), vcpus]


def _definition(inputs: Mapping[str, Any]) -> list[Any]:
    """Return, for example: 20 nodes, main node 0, each 62 vCPUs, 424000 MiB, 8 GPUs."""
    nodes = json.loads(inputs.get("nodeProperties") or "{}")
    container = nodes["nodeRangeProperties"][0]["container"]
    each = {requirement["type"]: requirement["value"] for requirement in container["resourceRequirements"]}
    attempts = (inputs.get("retryStrategy") or {}).get("attempts", 1)
    return [
        inputs.get("name"),
        inputs.get("type"),
        f"{plurals.count(nodes['numNodes'], 'node')}, main node {nodes['mainNode']}",
        f"each {each['VCPU']} vCPUs",
        f"{each['MEMORY']} MiB",
        plurals.count(int(each["GPU"]), "GPU") if "GPU" in each else None,
        plurals.count(attempts, "attempt"),
    ]


_GROUP_ID = re.compile(r"^<|\.id>$")
"""What a plan's placeholder for a security group's id has beside the resource's name."""
_HELD = re.compile(r"bash /var/tmp/ecs_image\.sh \S+ \S+ '?([^'\n]+)")
"""The container image that a baked image of Batch's machines keeps, in Image Builder's document."""
_NOTES: dict[str, Any] = {
    "Instance": lambda i: [i.get("instanceType") or i.get("machineType") or i.get("tier")],
    "InstanceTemplate": _google_template,
    "Firewall": _firewall,
    "Subnetwork": lambda i: [i.get("ipCidrRange")],
    "Disk": lambda i: [f"{i['size']} GiB" if i.get("size") else None],
    "Address": lambda i: ["public" if i.get("addressType") == "EXTERNAL" else "private"],
    "LaunchTemplate": _template,
    "Subnet": lambda i: [i.get("cidrBlock")],
    "Vpc": lambda i: [i.get("cidrBlock")],
    "Volume": lambda i: [f"{i['size']} GiB" if i.get("size") else None],
    "LustreFileSystem": lambda i: [
        i.get("deploymentType"),
        f"{i['storageCapacity']} GiB" if i.get("storageCapacity") else f"existing {i.get('id')}",
        f"from {i['importPath']}" if i.get("importPath") else None,
        f"to {i['exportPath']}" if i.get("exportPath") else None,
    ],
    "Component": lambda i: [f"holds {image}" for image in _HELD.findall(str(i.get("data")))],
    "ComputeEnvironment": _environment,
    "JobDefinition": _definition,
    "JobQueue": lambda i: [i.get("name")],
    "PlacementGroup": lambda i: [i.get("name"), i.get("strategy")],
    "Repository": lambda i: [i.get("name"), "scans on push"],
    "SecurityGroupIngressRule": lambda i: [_rule(i)[0].format(way="from")],
    "SecurityGroupEgressRule": lambda i: [_rule(i)[0].format(way="to")],
}
