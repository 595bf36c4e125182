"""Facts of machines: a dated snapshot, which a stack file may override.

`design()` and every check of a stack file read these facts and nothing else: a plan needs no network. The
snapshot has tables that `tools/machine_facts.py` makes from the clouds' own lists (`machine_facts/`), and
what has no such list (`machines.yaml`). Types that are in no table, and that a cloud was asked about on this
machine, come last (`infra.kept`).
Memory is in MiB as the machine's data sheet says it (Slurm gets less, see `infra.design`), NVMe in GiB,
prices in USD an hour on demand.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
from collections import ChainMap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from infra import kept
from infra.machine_table import Table, text

Provider = Literal["aws", "gcp", "local"]

# Slurm's generic resource by type of accelerator; all others are `gpu`.
GRES = dict.fromkeys(("trainium", "trainium2", "inferentia2"), "neuron")
LOCAL_SSD_GIB = 375
"""Google's one size."""
FEW = 12
"""Machines that a message names at most."""


class Facts(BaseModel):
    """Base of everything in the snapshot: immutable, and no key passes unnoticed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class BuiltIn(Facts):
    """The accelerators that a machine always has."""

    type: str = Field(description="v100, t4, a10g, a100, h100, trainium.")
    count: int = Field(gt=0, le=64, strict=True, description="Devices a machine.")


class Machine(Facts):
    """What one machine type is and may do."""

    provider: Provider
    vcpus: int = Field(gt=0)
    memory_mib: int = Field(gt=0)
    accelerator: BuiltIn | None = None
    placement: bool = False
    """May stand in a cluster placement group (aws) or under a compact policy (gcp)."""
    network_cards: int = 1
    efa: int = 0
    """Most EFA interfaces; 0: the machine has no EFA."""
    nvme_gib: int = 0
    local_ssds: int = 0
    """Local SSDs that are attached where a local scratch asks for them (gcp)."""
    regions: tuple[str, ...] | None = None
    """Where it is offered; None: everywhere, as far as the snapshot knows."""
    previous_generation: bool = False
    spot: bool = True
    """May be had as a spot machine."""
    asked: bool = False
    """Its facts are a cloud's answer, kept on this machine; about `regions` only."""
    price: dict[str, float] = Field(default_factory=dict)
    """By region, `*` for all others; a region that is not there has a price that is not known."""


class Override(Facts):
    """Facts of a machine that a stack file gives: over the snapshot's, or of a machine it does not know."""

    model_config = ConfigDict(strict=True)

    # slurmctld counts a node's CPUs in 16 bits.
    vcpus: int | None = Field(
        None, gt=0, le=65000, description="vCPUs. Needed for a machine that is not in the snapshot."
    )
    memory_mib: int | None = Field(
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
    regions: tuple[str, ...] | None = Field(None, strict=False, description="Regions that offer it.")
    price_hour: float | None = Field(None, ge=0, description="USD an hour, accelerators included.")


class Retired(Facts):
    """A machine that is no more."""

    provider: Provider
    why: str
    replaced_by: dict[str, str]
    """Machine -> what it is."""


class Unusable(Facts):
    """A machine type of which no machine here can be."""

    provider: Provider
    why: str
    asked: bool = False
    """Because of a cloud's answer, kept on this machine."""


class Described(Facts):
    """A cloud's answer about some of its types; what it does not have is in neither part."""

    machines: dict[str, Machine]
    unusable: dict[str, Unusable]


class Series(Facts):
    """What all machine types of one of Google's series have in common, and no list of theirs says."""

    placement: bool = False
    """Whether a compact policy takes them."""
    local_ssds: dict[int, int] = Field(default_factory=dict)
    """Most vCPUs of a machine -> the fewest local SSDs that it takes, if it takes any."""
    unusable: str | None = None
    """Why machines here cannot be of it."""


class Attachable(Facts):
    """A GPU that is attached to a machine instead of coming with it (Google Cloud)."""

    provider: Provider
    name: str
    """The cloud's own name of it."""
    families: tuple[str, ...]
    """Machine families that take it, e.g. `n1`."""
    max_vcpus: dict[int, int]
    """Allowed counts -> most vCPUs of the machine."""
    zones: tuple[str, ...] = ()
    """Where it was offered on the snapshot's date."""
    price: dict[str, float] = Field(default_factory=dict)
    spot_price: dict[str, float] = Field(default_factory=dict)


class Catalog(Facts):
    """The snapshot, with a stack file's overrides applied."""

    date: str
    machines: SkipValidation[Mapping[str, Machine]]
    retired: dict[str, Retired]
    unusable: dict[str, Unusable] = Field(default_factory=dict)
    surveyed: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By provider: the regions whose offers the tables know."""
    series: dict[str, Series] = Field(default_factory=dict)
    """Google's, by the name's first word."""
    attachable: dict[str, Attachable]
    storage: dict[str, dict[str, float]]
    storage_of: dict[str, str] = Field(default_factory=dict)
    """By provider: the region whose prices of storage these are; no others are known."""
    network: dict[str, dict[str, dict[str, float]]] = Field(default_factory=dict)
    """By provider, part (nat_gateway, nat_machine, public_address) and region."""

    def machine(self, name: str) -> Machine | None:
        return self.machines.get(name)

    def names(self, provider: str) -> list[str]:
        return [name for name, machine in self.machines.items() if machine.provider == provider]

    def near(self, name: str, provider: str) -> list[str]:
        """Machines of a provider whose names are like `name`, best first."""
        return difflib.get_close_matches(name, self.names(provider), n=3, cutoff=0.6)

    def some(
        self,
        name: str,
        provider: str,
        which: Callable[[Machine], object],
        best: Callable[[Machine], object] = bool,
    ) -> str:
        """The machines of a provider that are fit, in words; the few most like `name`, where there are many.

        Args:
            which: whether one is fit.
            best: whether it is to be named first.
        """
        fit = [one for one in self.names(provider) if which(self.machines[one])]
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
        """Whether a region offers a machine; also where nobody knows: the region is newer than the tables."""
        machine = self.machines[name]
        if machine.regions is None or region in machine.regions:
            return True
        return not machine.asked and region not in self.surveyed.get(machine.provider, (region,))

    def attachable_to(self, machine: str, accelerator: str) -> Attachable | None:
        """The GPU of this type, where the machine's family takes it."""
        gpu = self.attachable.get(accelerator)
        return gpu if gpu and machine.partition("-")[0] in gpu.families else None

    def price(
        self, name: str, region: str | None, *, accelerator: tuple[str, int] | None = None, spot: bool = False
    ) -> float | None:
        """USD an hour of a machine with its accelerators.

        Args:
            accelerator: type and count; used only where GPUs are attached, others are in the machine's price.
            spot: use the spot price of attached GPUs where it is known. Of machines the snapshot knows only
                the price on demand, which is the most that spot costs.

        Returns:
            None where any part of the price is unknown.
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
        """USD an hour of a part of the network; None where the snapshot knows none."""
        return _in_region(self.network.get(provider, {}).get(part, {}), region)

    def with_overrides(self, overrides: Mapping[str, Override], provider: Provider) -> Catalog:
        """A catalog in which the stack file's facts win.

        Raises:
            ValueError: a machine that the snapshot does not know, without vCPUs or memory.
        """
        if not overrides:
            return self
        machines: dict[str, Machine] = {}
        for name, override in overrides.items():
            given = override.model_dump(exclude_none=True)
            if (price := given.pop("price_hour", None)) is not None:
                given["price"] = {"*": price}
            known = self.machines.get(name)
            base = known.model_dump(exclude={"asked"}) if known else {"provider": provider}
            try:
                machines[name] = Machine.model_validate(base | given)
            except ValueError as error:
                raise ValueError(f"{name}: vcpus and memory_mib are needed for a new machine") from error
        retired = {name: r for name, r in self.retired.items() if name not in overrides}
        unusable = {name: why for name, why in self.unusable.items() if name not in overrides}
        over = {"machines": ChainMap(machines, _changeable(self.machines))}
        return self.model_copy(update={**over, "retired": retired, "unusable": unusable})


def _in_region(prices: Mapping[str, float], region: str | None) -> float | None:
    """The region's own price: prices differ by a quarter between regions, so none stands in for another."""
    return prices.get(region or "*", prices.get("*"))


def series(name: str) -> Series:
    """What the series of one of Google's machine types has in common; of an unknown series, nothing."""
    return tables().series.get(name.partition("-")[0], Series())


def _changeable(machines: Mapping[str, Machine]) -> dict[str, Machine]:
    """For a `ChainMap`, which writes to its first map only and asks for more of all others."""
    return cast("dict[str, Machine]", machines)


@functools.lru_cache(maxsize=1)
def tables() -> Catalog:
    """The snapshot in the repository."""
    by_hand = Path(__file__).with_name("machines.yaml").read_text(encoding="utf-8")
    found = yaml.load(by_hand, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    ec2, google, prices = (json.loads(text(f"{name}.json")) for name in ("ec2", "google", "prices"))
    table = Table(
        Machine.model_validate, {name: Machine.model_validate(one) for name, one in found["machines"].items()}
    )
    table.add("aws", "ec2.csv", ec2["offers"])
    table.add("gcp", "google.csv", google["offers"])
    return Catalog.model_validate(
        found
        | {
            "date": prices["date"],
            "machines": table,
            "attachable": {n: {**gpu, **prices["attachable"][n]} for n, gpu in found["attachable"].items()},
            "unusable": {name: {"provider": "aws", "why": why} for name, why in ec2["unusable"].items()},
            "surveyed": {"aws": ec2["surveyed"], "gcp": google["surveyed"]},
        }
    )


def catalog() -> Catalog:
    """The snapshot, and behind it what clouds were asked about on this machine."""
    return _catalog(kept.stamp())


@functools.lru_cache(maxsize=2)
def _catalog(_stamp: tuple[str, int]) -> Catalog:
    known, more = tables(), kept.read()
    if not any(more.values()):
        return known
    machines: dict[str, Machine] = {}
    unusable: dict[str, Unusable] = {}
    # A file of another version, or one that somebody has edited: what cannot be read is asked for again.
    for name, facts in more["machines"].items():
        with contextlib.suppress(ValueError):
            machines[name] = Machine.model_validate(facts).model_copy(update={"asked": True})
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
