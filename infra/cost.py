"""What a cluster costs: the least, while nothing runs, and the most, with every node up.

USD an hour from the design's prices (see `infra.instance_types.catalog`); a month is 730 hours. What has no
known price is named in `unknown` and is never silently counted as zero. Traffic, requests and support are in
no figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypedDict

from infra.instance_types.catalog import LOCAL_SSD_GIB, Catalog, catalog
from node.design.model import ClusterDesign, Partition
from node.design.storage import Mount
from node.system import plurals

HOURS_A_MONTH = 730.0

LOCAL_KINDS = ("nvme", "bind")
"""The kinds that cost nothing more than their machine."""
INCLUDED_IOPS, INCLUDED_MIBS = 3000, 125
"""What every gp3 volume has for the price of its size."""
SPOT = ", spot at most"
"""Text after an instance type whose price is the most that a spot machine costs."""


class Part(TypedDict):
    """One line of the bill.

    Attributes:
        name: Controller, login, network, partition compute, partition train/spot (of a pool), /fsx, disks.
        what: The machine or the kind of storage.
        idle: USD an hour while no job runs; `None` if it is unknown.
        max: USD an hour with every node up; `None` if it is unknown.
    """

    name: str
    what: str
    idle: float | None
    max: float | None


class PoolPrices(TypedDict):
    """What the pools of a partition cost, in USD an hour. Prices that are not known are in no figure.

    Attributes:
        partition: The partition's name.
        mixed: Whether a job may have nodes of several pools.
        cheapest: The least that a node costs; `None` if no price is known.
        dearest: The most.
        job: The most that one job costs, which has a pool's nodes, or of a mixed partition all of them.
        max: The most that all jobs together cost: every node of every pool is up.
    """

    partition: str
    mixed: bool
    cheapest: float | None
    dearest: float | None
    job: float
    max: float


class Cost(TypedDict):
    """The cluster's cost in USD an hour: plain data, in a plan's JSON and in the outputs.

    Attributes:
        unknown: The parts that the two sums leave out because their price is not known.
        pools: The partitions that have pools.
        prices_of: Date of the snapshot of prices.
    """

    idle_usd_per_hour: float
    max_usd_per_hour: float
    parts: list[Part]
    unknown: list[str]
    pools: list[PoolPrices]
    prices_of: str


def cost(design: ClusterDesign, facts: Catalog | None = None) -> Cost:
    """Return the cluster's cost with no job and with every node up.

    Args:
        facts: The prices of storage and network; by default the snapshot in the repository. The prices of
            machines are in the design.
    """
    facts = facts or catalog()
    parts = [
        *_hosts(design),
        *_network(design, facts),
        *_partitions(design),
        *_storage(design, facts),
        *_disks(design, facts),
        *_performance(design),
        *_types(design, facts),
        *_local_ssds(design, facts),
    ]
    return Cost(
        idle_usd_per_hour=_sum(p["idle"] for p in parts),
        max_usd_per_hour=_sum(p["max"] for p in parts),
        parts=parts,
        unknown=[f"{p['name']} ({p['what']})" for p in parts if p["max"] is None],
        pools=[_pool_prices(p) for p in design.pools().values() if p[0].pool is not None],
        prices_of=facts.date,
    )


def unbilled(design: ClusterDesign) -> float:
    """Return USD an hour of all that is up without jobs and is no node, as far as prices are known."""
    return _sum(part["idle"] for part in cost(design)["parts"] if not part["name"].startswith("partition "))


def unpriced(parts: Iterable[Part]) -> list[str]:
    """Return the parts without a known price, for a sentence: machines by type, everything else by name."""
    names = [
        what if " " not in what and not part["name"].startswith("/") else f"{part['name']} ({what})"
        for part in parts
        if part["max"] is None
        for what in [part["what"].removesuffix(SPOT)]
    ]
    return list(dict.fromkeys(names))


def sentence(cost: Cost) -> str:
    """Return the cost in a sentence: the two sums, and what they leave out because its price is unknown."""
    idle, most = cost["idle_usd_per_hour"], cost["max_usd_per_hour"]
    floor = "at least " * any(part["idle"] is None for part in cost["parts"])
    text = f"{floor}{idle:.2f} USD an hour idle"
    if not (unknown := unpriced(cost["parts"])):
        return f"{text}, at most {most:.2f} USD an hour"
    return (
        f"{text}, at least {most:.2f} USD an hour with every node up, price of {', '.join(unknown)} unknown"
    )


class BudgetOutlook(TypedDict):
    """The budget in a plan.

    Attributes:
        running_jobs: What happens to running jobs when the budget is used up: keep | cancel.
        lasts_hours: How long the budget lasts with every node up; `None` if no node has a known price above
            0.
        unknown: Instance types that the limit in USD does not count, because their price is not known.
    """

    max_usd: float | None
    max_hours: float | None
    running_jobs: str
    lasts_hours: float | None
    unknown: list[str]


def budget(design: ClusterDesign) -> BudgetOutlook | None:
    """Return how long the budget lasts; `None` if there is no budget."""
    config = design.budget
    limits = (
        (config.max_usd, sum((p.price_hour or 0.0) * p.max for p in design.partitions)),
        (config.max_hours, float(sum(p.max for p in design.partitions))),
    )
    if config.max_usd is None and config.max_hours is None:
        return None
    lasts = [most / hourly for most, hourly in limits if most is not None and hourly > 0]
    return BudgetOutlook(
        max_usd=config.max_usd,
        max_hours=config.max_hours,
        running_jobs=config.running_jobs,
        lasts_hours=round(min(lasts), 4) if lasts else None,
        unknown=[] if config.max_usd is None else _unpriced_machines(design),
    )


def _unpriced_machines(design: ClusterDesign) -> list[str]:
    machines = [p.instance_type for p in design.partitions if p.price_hour is None and p.max]
    return list(dict.fromkeys(machines))


def reach(budget: BudgetOutlook) -> str:
    """Return how long the budget lasts, in a sentence."""
    limits = ((budget["max_usd"], "USD"), (budget["max_hours"], "node-hours"))
    most = [f"{limit:g} {unit}" for limit, unit in limits if limit]
    lasts, unknown = budget["lasts_hours"], ", ".join(budget["unknown"])
    end = f", price of {unknown} unknown" if unknown else ""
    if lasts is not None:
        text = f"lasts {'at most ' * bool(unknown)}{plurals.of_hours(lasts)} at full size{end}"
    else:
        text = f"counts no node{end}" if unknown else "is never used up: nodes cost nothing"
    after = {"keep": "no new node starts, jobs that run go on", "cancel": "running jobs are cancelled"}
    then = f"; then {after[budget['running_jobs']]}" if lasts is not None else ""
    return f"The budget of {' and '.join(most)} {text}{then}"


def _sum(prices: Iterator[float | None]) -> float:
    return round(sum(p for p in prices if p is not None), 6)


def _times(price: float | None, count: float) -> float | None:
    # Without machines the cost is 0, even if their price is unknown.
    if count == 0:
        return 0.0
    return None if price is None else round(price * count, 6)


def _hosts(design: ClusterDesign) -> Iterator[Part]:
    for host in design.hosts:
        yield Part(name=host.name, what=host.instance_type, idle=host.price_hour, max=host.price_hour)


def _network(design: ClusterDesign, facts: Catalog) -> Iterator[Part]:
    """Yield the cost of the NAT gateway and of public addresses, without traffic."""
    if design.provider not in facts.network or not (design.hosts or design.batch):
        return
    # The gateway has an address, too. The owner of an existing network pays for its gateway.
    gateways = 0 if design.network.vpc or not design.aws.nat else 1
    everywhere = not design.aws.nat
    addresses = gateways + sum(everywhere or "public" in host.tags for host in design.hosts)
    each = facts.network_price(design.provider, "public_address", design.region)
    hosts = sum("public" not in host.tags for host in design.hosts)
    nodes = [sum(p.min for p in design.partitions), sum(p.max for p in design.partitions)]
    idle, most = (
        _total(
            _times(each, addresses + (running if everywhere else 0)),
            _times(_gateway(design, facts, hosts + running), gateways),
        )
        for running in nodes
    )
    text = f"{addresses} public address{'es' * (addresses > 1)}"
    text += " and one for each node that is up" if everywhere else ""
    what = ["NAT gateway"] * gateways + [text] * (addresses > 0)
    if what:
        yield Part(name="network", what=", ".join(what), idle=idle, max=most)


def _gateway(design: ClusterDesign, facts: Catalog, machines: int) -> float | None:
    """Return USD an hour for a NAT gateway.

    Google charges for each machine behind it, at most `nat_gateway`.
    """
    whole = facts.network_price(design.provider, "nat_gateway", design.region)
    each = facts.network_price(design.provider, "nat_machine", design.region)
    return whole if whole is None or each is None else min(whole, each * machines)


def _total(*prices: float | None) -> float | None:
    known = [price for price in prices if price is not None]
    return round(sum(known), 6) if len(known) == len(prices) else None


def _partitions(design: ClusterDesign) -> Iterator[Part]:
    for p in design.partitions:
        what = f"{p.instance_type}{SPOT}" if p.spot else p.instance_type
        yield Part(
            name=f"partition {p.label}",
            what=what,
            idle=_times(p.price_hour, p.min),
            max=_times(p.price_hour, p.max),
        )
    for shared in design.shared_partitions:
        yield Part(name=f"partition {shared.name}", what=f"the nodes of {shared.nodes_of}", idle=0.0, max=0.0)


def _pool_prices(pools: Sequence[Partition]) -> PoolPrices:
    prices = [p.price_hour for p in pools if p.price_hour is not None]
    full = [round((p.price_hour or 0.0) * p.max, 6) for p in pools]
    return PoolPrices(
        partition=pools[0].slurm_name,
        mixed=pools[0].mixed,
        cheapest=min(prices, default=None),
        dearest=max(prices, default=None),
        job=sum(full) if pools[0].mixed else max(full),
        max=sum(full),
    )


def _storage(design: ClusterDesign, facts: Catalog) -> Iterator[Part]:
    for mount in design.mounts:
        if mount.kind in LOCAL_KINDS or design.provider == "local":
            continue
        if mount.existing is not None:
            # Its owner pays for it anyway.
            yield Part(name=mount.path, what=f"{mount.kind} {mount.existing}, existing", idle=0.0, max=0.0)
            continue
        rate = _rate(design.provider, mount, facts)
        size = mount.size_gib
        price = None if rate is None or size is None else _times(rate, size / HOURS_A_MONTH)
        end = "kept by down" if mount.keep else "saved by down" if mount.snapshot else None
        what = " ".join(str(t) for t in (mount.kind, mount.deployment, size and f"{size} GiB", end) if t)
        # A file system of a job's own is there as long as the job.
        of_job = design.batch is not None and design.batch.file_system == "job"
        idle = 0.0 if of_job and mount.kind == "fsx_lustre" else price
        yield Part(name=mount.path, what=what, idle=idle, max=price)


def _rate(provider: str, mount: Mount, facts: Catalog) -> float | None:
    """Return USD for each GiB and month; `None` if it is unknown."""
    prices = facts.storage.get(provider, {})
    if mount.kind == "filestore":
        return prices.get(f"{mount.kind}.{mount.deployment}")
    if mount.kind != "fsx_lustre":
        # Both are disks of the controller's.
        return prices.get("nfs" if mount.kind == "disk" else mount.kind)
    # The snapshot has only SSDs, and PERSISTENT_2 with few throughputs.
    if mount.storage_type != "SSD":
        return None
    faster = "" if mount.throughput in (None, 125) else f".{mount.throughput}"
    return prices.get(f"{mount.kind}.{mount.deployment}{faster}")


def _disks(design: ClusterDesign, facts: Catalog) -> Iterator[Part]:
    """Yield the cost of root disks of hosts, and of nodes while they are up."""
    hosts = sum(h.disk_gib for h in design.hosts)
    usual = [p for p in design.partitions if p.gcp.disk_type is None]
    idle = hosts + sum(p.disk_gib * p.min for p in usual)
    most = hosts + sum(p.disk_gib * p.max for p in usual)
    if most == 0:
        return
    rate = facts.storage.get(design.provider, {}).get("disk")
    monthly = None if rate is None else rate / HOURS_A_MONTH
    yield Part(
        name="root disks", what=f"{most} GiB at most", idle=_times(monthly, idle), max=_times(monthly, most)
    )


def _types(design: ClusterDesign, facts: Catalog) -> Iterator[Part]:
    """Yield the cost of root disks of nodes whose type the stack file gives."""
    for p in design.partitions:
        if p.gcp.disk_type is None:
            continue
        rate = facts.storage.get(design.provider, {}).get(f"disk.{p.gcp.disk_type}")
        monthly = None if rate is None else rate / HOURS_A_MONTH
        yield Part(
            name=f"disks of {p.label}",
            what=f"{p.gcp.disk_type}, {p.disk_gib * p.max} GiB at most",
            idle=_times(monthly, p.disk_gib * p.min),
            max=_times(monthly, p.disk_gib * p.max),
        )


def _performance(design: ClusterDesign) -> Iterator[Part]:
    """Yield the IOPS and the throughput beyond those that every gp3 volume has. Their price is not known."""
    disks = [(f"disk of {host.name}", host.gp3, 1, 1) for host in design.hosts]
    disks += [(f"disks of {p.label}", p.aws.gp3, p.min, p.max) for p in design.partitions]
    disks += [(f"disk of {m.path}", m.gp3, 1, 1) for m in design.mounts]
    for name, gp3, idle, most in disks:
        more = (
            [
                f"{given - included} {unit}"
                for given, included, unit in (
                    (gp3.iops or INCLUDED_IOPS, INCLUDED_IOPS, "IOPS"),
                    (gp3.throughput or INCLUDED_MIBS, INCLUDED_MIBS, "MiB/s"),
                )
                if given > included
            ]
            if gp3
            else []
        )
        if more:
            what = f"gp3, {' and '.join(more)} more than every volume has"
            yield Part(name=name, what=what, idle=_times(None, idle), max=_times(None, most))


def _local_ssds(design: ClusterDesign, facts: Catalog) -> Iterator[Part]:
    """Yield the cost of Google's local SSDs, which the price of a machine does not include."""
    idle, most = (
        LOCAL_SSD_GIB * sum(p.local_ssds * count for p, count in counted)
        for counted in (
            [(p, p.min) for p in design.partitions],
            [(p, p.max) for p in design.partitions],
        )
    )
    if most == 0:
        return
    rate = facts.storage.get(design.provider, {}).get("local_ssd")
    monthly = None if rate is None else rate / HOURS_A_MONTH
    yield Part(
        name="local SSDs", what=f"{most} GiB at most", idle=_times(monthly, idle), max=_times(monthly, most)
    )
