"""Facts of instance types: a dated snapshot, which a stack file may override.

`design()` and all checks of a stack file read only these facts, so a plan needs no network. The snapshot
has tables that `tools/instance_types.py` makes from the clouds' own lists (`facts/`), and a file for what has
no such list (`by_hand.yaml`). Types that are in neither come from `infra.instance_types.cache`, if a cloud
was asked about them on this machine.

Memory is in MiB as in the machine's data sheet (Slurm gets less, see `infra.design`), NVMe in GiB, prices in
USD an hour on demand.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from infra.effects import Kind, Outcome, effect
from infra.instance_types import cache

Provider = Literal["aws", "gcp", "local"]

# Type of accelerator -> Slurm's generic resource; all others are `gpu`.
GRES = dict.fromkeys(("trainium", "trainium2", "inferentia2"), "neuron")
NEURON_CORES = {"trainium": 2, "trainium2": 4, "inferentia2": 2}
"""Type of accelerator -> the NeuronCores that programs see on a device. Of Trainium2's eight cores two are
one for programs by default (awsdocs-neuron, "Logical NeuronCore configuration")."""
LOCAL_SSD_GIB = 375
"""The only size of Google's local SSDs."""
FEW = 12
"""The most instance types that a message names."""
M = TypeVar("M")
COLUMNS = (
    "vcpus",
    "memory_mib",
    "accelerator",
    "count",
    "placement",
    "network_cards",
    "efa",
    "nvme_gib",
    "local_ssds",
    "previous_generation",
    "spot",
    "offer",
)
"""The columns of a table after the type. An empty field means the default.

`offer` is the number of a list of regions; empty means all regions that were surveyed.
"""


class Facts(BaseModel):
    """Base of everything in the snapshot: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class BuiltIn(Facts):
    """The accelerators that are part of an instance type."""

    type: str = Field(description="v100, t4, a10g, a100, h100, trainium.")
    count: int = Field(gt=0, le=64, strict=True, description="Devices a machine.")


class InstanceType(Facts):
    """An instance type: its size, what it may be used for, and its prices.

    Attributes:
        placement: Whether it can be in a cluster placement group (aws) or under a compact placement policy
            (gcp).
        efa: The most EFA interfaces; 0 means no EFA.
        local_ssds: Number of local SSDs that are attached for a local scratch (gcp).
        sockets: Sockets, if a stack file gives them (`Catalog.sockets`).
        regions: The regions that offer it; `None` means every region that the snapshot knows.
        spot: Whether it is offered as a spot machine.
        asked: Whether its facts are a cloud's answer that is kept on this machine; it is about `regions`
            only.
        price: Region -> price, `*` for all others. The price in any other region is unknown.
    """

    provider: Provider
    vcpus: int = Field(gt=0)
    memory_mib: int = Field(gt=0)
    accelerator: BuiltIn | None = None
    placement: bool = False
    network_cards: int = 1
    efa: int = 0
    nvme_gib: int = 0
    local_ssds: int = 0
    sockets: int | None = None
    regions: tuple[str, ...] | None = None
    previous_generation: bool = False
    spot: bool = True
    asked: bool = False
    price: dict[str, float] = Field(default_factory=dict)


class Override(Facts):
    """Facts that a stack file gives, of an instance type that the snapshot has or of another one."""

    model_config = ConfigDict(strict=True)

    # slurmctld counts a node's CPUs in 16 bits.
    vcpus: Annotated[int | None, effect(Kind.RENEWED, design=("partitions.cpus",))] = Field(
        None, gt=0, le=65000, description="vCPUs. Needed for a machine that is not in the snapshot."
    )
    memory_mib: Annotated[int | None, effect(Kind.RENEWED, design=("partitions.memory_mib",))] = Field(
        None, gt=0, le=100_000_000, description="Memory in MiB as the data sheet says. Needed as `vcpus` is."
    )
    accelerator: BuiltIn | None = Field(None, description="Accelerators that the machine always has.")
    placement: bool | None = Field(None, description="Whether it takes a cluster placement group.")
    network_cards: int | None = Field(None, gt=0, le=64, description="Network cards.")
    efa: int | None = Field(None, ge=0, le=64, description="Most EFA interfaces; 0 for none.")
    nvme_gib: int | None = Field(None, ge=0, description="Its own NVMe disks together, GiB.")
    local_ssds: int | None = Field(
        None, ge=0, le=32, description="Google Cloud: local SSDs of 375 GiB attached for local_scratch."
    )
    sockets: Annotated[int | None, effect(Kind.RENEWED, design=("partitions.sockets",))] = Field(
        None, gt=0, le=64, description="Sockets, by which Slurm divides its vCPUs; 1 if none are known."
    )
    regions: tuple[str, ...] | None = Field(None, strict=False, description="Regions that offer it.")
    price_hour: Annotated[
        float | None,
        effect(Kind.LIVE, local=Outcome(Kind.LIVE, design=()), design=("partitions.price_hour",)),
    ] = Field(None, ge=0, description="USD an hour, accelerators included.")


class Retired(Facts):
    """An instance type that the cloud no longer offers.

    Attributes:
        replaced_by: Instance type -> what it is.
    """

    provider: Provider
    why: str
    replaced_by: dict[str, str]


class Unusable(Facts):
    """An instance type that this program cannot use.

    Attributes:
        asked: Whether the reason is a cloud's answer that is kept on this machine.
    """

    provider: Provider
    why: str
    asked: bool = False


class Described(Facts):
    """A cloud's answer about some types. A type that the cloud does not have is in neither part."""

    machines: dict[str, InstanceType]
    unusable: dict[str, Unusable]


class Series(Facts):
    """What the instance types of one of Google's series have in common and no list of Google's says.

    Attributes:
        placement: Whether they can be under a compact placement policy.
        local_ssds: The most vCPUs of a machine -> the fewest local SSDs that it can have, if it has any.
        sockets: The most vCPUs of a machine -> its sockets; one socket for more vCPUs than any of these.
        unusable: Why this program cannot use the series; `None` if it can.
    """

    placement: bool = False
    local_ssds: dict[int, int] = Field(default_factory=dict)
    sockets: dict[int, int] = Field(default_factory=dict)
    unusable: str | None = None


class Attachable(Facts):
    """A GPU that is attached to a machine instead of coming with it (Google Cloud).

    Attributes:
        name: The cloud's name for it.
        families: Machine families to which it can be attached, e.g. `n1`.
        max_vcpus: Allowed number of GPUs -> the most vCPUs of the machine.
        zones: The zones that offered it on the snapshot's date.
    """

    provider: Provider
    name: str
    families: tuple[str, ...]
    max_vcpus: dict[int, int]
    zones: tuple[str, ...] = ()
    price: dict[str, float] = Field(default_factory=dict)
    spot_price: dict[str, float] = Field(default_factory=dict)


class Catalog(Facts):
    """The snapshot, with a stack file's overrides applied.

    Attributes:
        surveyed: Provider -> regions whose offers are in the tables.
        series: First word of an instance type's name -> Google's series.
        sockets_of: Instance type -> its sockets, where they are neither one nor as its series says.
        storage_of: Provider -> the only region whose storage prices are known.
        network: Provider -> part (nat_gateway, nat_machine, public_address) -> region -> price.
    """

    date: str
    machines: SkipValidation[Mapping[str, InstanceType]]
    retired: dict[str, Retired]
    unusable: dict[str, Unusable] = Field(default_factory=dict)
    surveyed: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    series: dict[str, Series] = Field(default_factory=dict)
    sockets_of: dict[str, int] = Field(default_factory=dict)
    attachable: dict[str, Attachable]
    storage: dict[str, dict[str, float]]
    storage_of: dict[str, str] = Field(default_factory=dict)
    network: dict[str, dict[str, dict[str, float]]] = Field(default_factory=dict)

    def instance_type(self, name: str) -> InstanceType | None:
        return self.machines.get(name)

    def names(self, provider: str) -> list[str]:
        return [name for name, machine in self.machines.items() if machine.provider == provider]

    def sockets(self, name: str) -> int:
        """Return the sockets of an instance type; 1 if they are not known."""
        machine = self.machines[name]
        if machine.sockets is not None:
            return machine.sockets
        by_vcpus = sorted(self.series.get(name.partition("-")[0], Series()).sockets.items())
        return self.sockets_of.get(name) or next((n for most, n in by_vcpus if machine.vcpus <= most), 1)

    def near(self, name: str, provider: str) -> list[str]:
        """Return instance types of a provider with names similar to `name`, the most similar first."""
        return difflib.get_close_matches(name, self.names(provider), n=3, cutoff=0.6)

    def matching(
        self,
        name: str,
        provider: str,
        which: Callable[[InstanceType], object],
        best: Callable[[InstanceType], object] = bool,
    ) -> str:
        """Return the instance types of a provider that fulfil a condition, as text.

        If there are more than `FEW`, the text has those that are most similar to `name`.

        Args:
            which: The condition.
            best: Whether an instance type is to be named first.
        """
        fit = [other for other in self.names(provider) if which(self.machines[other])]
        if len(fit) <= FEW:
            return ", ".join(fit)
        wanted = self.machines.get(name)
        vcpus = wanted.vcpus if wanted else 0

        def distance(other: str) -> tuple[bool, float, int]:
            machine = self.machines[other]
            alike = difflib.SequenceMatcher(None, name, other).ratio()
            return not best(machine), -round(alike, 1), abs(machine.vcpus - vcpus)

        return f"{', '.join(sorted(fit, key=distance)[:FEW])} and {len(fit) - FEW} others"

    def offered(self, name: str, region: str) -> bool:
        """Return whether a region offers an instance type. True if that is unknown, as for a new region."""
        machine = self.machines[name]
        if machine.regions is None or region in machine.regions:
            return True
        return not machine.asked and region not in self.surveyed.get(machine.provider, (region,))

    def attachable_to(self, machine: str, accelerator: str) -> Attachable | None:
        """Return the GPU of this type if it can be attached to the instance type, else `None`."""
        gpu = self.attachable.get(accelerator)
        return gpu if gpu and machine.partition("-")[0] in gpu.families else None

    def price(
        self, name: str, region: str | None, *, accelerator: tuple[str, int] | None = None, spot: bool = False
    ) -> float | None:
        """Return USD an hour of a machine with its accelerators.

        Args:
            accelerator: Type and count; used only for attached GPUs, because the price of a machine includes
                all others.
            spot: Use the spot price of attached GPUs if it is known. For machines the snapshot has only the
                price on demand, which is the most that spot costs.

        Returns:
            The price, or `None` if any part of it is unknown.
        """
        machine = self.machines.get(name)
        if machine is None:
            return None
        price = _in_region(machine.price, region)
        if price is None or accelerator is None or machine.accelerator is not None:
            return price
        gpu = self.attachable_to(name, accelerator[0])
        if gpu is None:
            return price if machine.provider == "local" else None
        each = (_in_region(gpu.spot_price, region) if spot else None) or _in_region(gpu.price, region)
        return None if each is None else round(price + each * accelerator[1], 6)

    def network_price(self, provider: str, part: str, region: str | None) -> float | None:
        """Return USD an hour for a part of the network; `None` if the snapshot has no price."""
        return _in_region(self.network.get(provider, {}).get(part, {}), region)

    def with_overrides(self, overrides: Mapping[str, Override], provider: Provider) -> Catalog:
        """Return a catalog in which the stack file's facts win.

        Raises:
            ValueError: An instance type that the snapshot does not have is given without vCPUs or memory.
        """
        if not overrides:
            return self
        machines: dict[str, InstanceType] = {}
        for name, override in overrides.items():
            given = override.model_dump(exclude_none=True)
            if (price := given.pop("price_hour", None)) is not None:
                given["price"] = {"*": price}
            known = self.machines.get(name)
            base = known.model_dump(exclude={"asked"}) if known else {"provider": provider}
            try:
                machines[name] = InstanceType.model_validate(base | given)
            except ValueError as error:
                raise ValueError(f"{name}: vcpus and memory_mib are needed for a new machine") from error
        retired = {name: r for name, r in self.retired.items() if name not in overrides}
        unusable = {name: why for name, why in self.unusable.items() if name not in overrides}
        over = {"machines": ChainMap(machines, _changeable(self.machines))}
        return self.model_copy(update={**over, "retired": retired, "unusable": unusable})


def _in_region(prices: Mapping[str, float], region: str | None) -> float | None:
    """Return the price in a region.

    Prices differ by a quarter between regions, so no other region's is used.
    """
    return prices.get(region or "*", prices.get("*"))


def series(name: str) -> Series:
    """Return the series of one of Google's instance types; an empty one if it is unknown."""
    return tables().series.get(name.partition("-")[0], Series())


def _changeable(machines: Mapping[str, InstanceType]) -> dict[str, InstanceType]:
    """Return the type that `ChainMap` asks for, although it writes only to its first map."""
    return cast("dict[str, InstanceType]", machines)


@functools.lru_cache(maxsize=1)
def tables() -> Catalog:
    """Return the snapshot in the repository."""
    by_hand = Path(__file__).with_name("by_hand.yaml").read_text(encoding="utf-8")
    manual = yaml.load(by_hand, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    ec2, google, prices = (json.loads(_text(f"{name}.json")) for name in ("ec2", "google", "prices"))
    table = Table(
        InstanceType.model_validate,
        {name: InstanceType.model_validate(facts) for name, facts in manual["machines"].items()},
    )
    table.add("aws", "ec2.csv", ec2["offers"])
    table.add("gcp", "google.csv", google["offers"])
    return Catalog.model_validate(
        manual
        | {
            "date": prices["date"],
            "machines": table,
            "attachable": {n: {**gpu, **prices["attachable"][n]} for n, gpu in manual["attachable"].items()},
            "unusable": {name: {"provider": "aws", "why": why} for name, why in ec2["unusable"].items()},
            "surveyed": {"aws": ec2["surveyed"], "gcp": google["surveyed"]},
        }
    )


def catalog() -> Catalog:
    """Return the snapshot, and after it what clouds have answered on this machine."""
    return _catalog(cache.stamp())


@functools.lru_cache(maxsize=2)
def _catalog(_stamp: tuple[str, int]) -> Catalog:
    known, more = tables(), cache.read()
    if not any(more.values()):
        return known
    machines: dict[str, InstanceType] = {}
    unusable: dict[str, Unusable] = {}
    # The file may be of another version or edited. What cannot be read is left out and asked for again.
    for name, facts in more["machines"].items():
        with contextlib.suppress(ValueError):
            machines[name] = InstanceType.model_validate(facts).model_copy(update={"asked": True})
    for name, facts in more["unusable"].items():
        with contextlib.suppress(ValueError):
            unusable[name] = Unusable.model_validate(facts).model_copy(update={"asked": True})
    unknown = {name for name in unusable if name not in known.machines}
    return known.model_copy(
        update={
            "machines": ChainMap(_changeable(known.machines), machines),
            "unusable": {**{name: unusable[name] for name in unknown}, **known.unusable},
        }
    )


class Table(Mapping[str, M], Generic[M]):
    """The instance types of the tables.

    A row is parsed when its type is asked for: a stack has a few types, and parsing all thousand would take
    most of a command's time.

    Args:
        make: Makes an instance type from its facts.
        by_hand: The instance types that no table has.
    """

    def __init__(self, make: Callable[[dict[str, Any]], M], by_hand: Mapping[str, M]) -> None:
        self._make = make
        self._made = dict(by_hand)
        self._rows: dict[str, tuple[str, str]] = {}
        self._offers: dict[str, list[tuple[str, ...]]] = {}
        self._names: list[str] = list(by_hand)
        self._prices: dict[str, list[tuple[str, str]]] = {}
        for line in _text("prices.csv").splitlines()[1:]:
            name, region, price = line.split(",")
            self._prices.setdefault(name, []).append((region, price))

    def add(self, provider: str, file: str, offers: list[list[str]]) -> None:
        """Add the rows of a file.

        Args:
            offers: The lists of regions to which the rows refer by number.
        """
        self._offers[provider] = [tuple(regions) for regions in offers]
        header, *lines = _text(file).splitlines()
        assert header.split(",") == ["type", *COLUMNS], file
        for line in lines:
            name, _, rest = line.partition(",")
            self._rows[name] = provider, rest
            self._names.append(name)

    def __getitem__(self, name: str) -> M:
        if name not in self._made:
            self._made[name] = self._read(name, *self._rows[name])
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._rows or name in self._made

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _read(self, name: str, provider: str, row: str) -> M:
        facts: dict[str, Any] = {
            key: value for key, value in zip(COLUMNS, row.split(","), strict=True) if value
        }
        if kind := facts.pop("accelerator", None):
            facts["accelerator"] = {"type": kind, "count": int(facts.pop("count"))}
        if (offer := facts.pop("offer", None)) is not None:
            facts["regions"] = self._offers[provider][int(offer)]
        price = {region: float(usd) for region, usd in self._prices.get(name, ())}
        return self._make({"provider": provider, **facts, "price": price})


def _text(file: str) -> str:
    """Return the content of a file in `facts/`."""
    return (Path(__file__).parent / "facts" / file).read_text(encoding="utf-8")
