"""Make the tables of infra/instance_types/facts/ from the clouds' own lists:

    PYTHONPATH=. .venv/bin/python tools/instance_types.py
    PYTHONPATH=. .venv/bin/python tools/instance_types.py --google CLONE --prices FILE --us-east-1 FILE

ec2, and ec2_speeds: EC2's DescribeInstanceTypes and DescribeInstanceTypeOfferings of its regions, as the
installed moto carries them (moto refreshes its copy from a real account; a newer moto gives a newer table).

google, with `--google`: a clone of Cyclenerd/google-cloud-pricing-cost-calculator, whose tools/*.csv are
`gcloud compute machine-types list`'s answer, and whose build/gcp.yml has the GPUs and local SSDs that come
with a type. Only series of by_hand.yaml are taken.

prices, with `--prices`: a list of prices read from public catalogs, with its sources; with `--us-east-1`:
karpenter-provider-aws' pkg/providers/pricing/zz_generated.pricing_aws.go, for the types that the list lacks.

Each table is a CSV file, a line for each type, so that a refresh is read as a difference; beside it, a JSON
file says where it is from and holds what belongs to no one type.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "infra" / "instance_types" / "facts"
GIB = 1024
OUR_NAMES = {"h100-80gb-mega": "h100_mega_80gb"}
"""GPUs to which build/gcp.yml gives another name than Compute Engine."""


def ec2() -> dict[str, Any]:
    """EC2's types, from moto."""
    import moto

    from cli.providers.aws import types

    data = Path(moto.__file__).parent / "ec2" / "resources"
    described = json.loads(gzip.decompress((data / "instance_types.json.gz").read_bytes()))
    offered: dict[str, list[str]] = {}
    surveyed = []
    for file in sorted((data / "instance_type_offerings" / "region").glob("*.json.gz")):
        region = file.name.removesuffix(".json.gz")
        surveyed.append(region)
        for offer in json.loads(gzip.decompress(file.read_bytes())):
            offered.setdefault(offer["InstanceType"], []).append(region)
    # ARM types are left out: the checks refuse them by their names, also those that come after this snapshot.
    mine = [
        machine_type
        for machine_type in described.values()
        if "x86_64" in machine_type["ProcessorInfo"]["SupportedArchitectures"]
    ]
    parsed = types.parse(mine)
    machines = {
        machine_type["InstanceType"]: types.read(machine_type)
        for machine_type in mine
        if machine_type["InstanceType"] in parsed.machines
    }
    return {
        "source": f"moto {moto.__version__}: DescribeInstanceTypes, DescribeInstanceTypeOfferings",
        **_offers(machines, offered, surveyed),
        "unusable": {name: why.why for name, why in parsed.unusable.items()},
        "speeds": {
            machine_type["InstanceType"]: _speeds(machine_type)
            for machine_type in mine
            if machine_type["InstanceType"] in machines
        },
    }


def _speeds(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return what nothing is decided by (`infra.instance_types.speeds`)."""
    processor = described["ProcessorInfo"]
    return {
        "ebs_mbps": described["EbsInfo"].get("EbsOptimizedInfo", {}).get("BaselineBandwidthInMbps"),
        "network": described["NetworkInfo"]["NetworkPerformance"],
        "maker": processor.get("Manufacturer"),
        "ghz": processor.get("SustainedClockSpeedInGhz"),
    }


def speed_rows(speeds: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the speeds as a CSV table."""
    from infra.instance_types.speeds import COLUMNS

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["type", *COLUMNS])
    writer.writerows([name, *(speed[column] for column in COLUMNS)] for name, speed in sorted(speeds.items()))
    return buffer.getvalue()


def google(repository: Path) -> dict[str, Any]:
    """Google's types of the series that are in the table."""
    from infra.instance_types.catalog import tables

    known = tables().series
    with_types = yaml.safe_load(_show(repository, "build/gcp.yml"))["compute"]["instance"]
    offered: dict[str, list[str]] = {}
    surveyed = set()
    for row in _rows(repository, "tools/machinetyperegion.csv"):
        offered.setdefault(row["NAME"], []).append(row["ZONE"])
        surveyed.add(row["ZONE"])
    machines = {}
    for row in _rows(repository, "tools/machinetypes.csv"):
        name = row["NAME"]
        series = known.get(name.partition("-")[0])
        with_it = with_types.get(name, {})
        if series is None or series.unusable or name.endswith("-metal") or name not in offered:
            continue
        gpu = next(((kind, count) for kind, count in with_it.items() if re.match(r"[ahl][0-9]", kind)), None)
        # GPUs of a kind that the list does not know yet, and A3 Ultra, whose disks are Hyperdisks.
        if "gpu-" in name and gpu is None:
            continue
        facts: dict[str, Any] = {
            "vcpus": int(row["CPUS"]),
            "memory_mib": round(float(row["MEMORY_GB"]) * GIB),
        }
        if gpu is not None:
            kind = OUR_NAMES.get(gpu[0], gpu[0].replace("-", "_"))
            facts["accelerator"] = {"type": kind, "count": gpu[1]}
        if series.placement:
            facts["placement"] = True
        if disks := with_it.get("local-ssd"):
            facts["nvme_gib"] = disks
        elif counts := [n for most, n in sorted(series.local_ssds.items()) if facts["vcpus"] <= most]:
            facts["local_ssds"] = counts[0]
        machines[name] = facts
    commit = _git(repository, "log", "-1", "--format=%H %cs", "--", "tools/machinetypes.csv").split()
    return {
        "source": "Cyclenerd/google-cloud-pricing-cost-calculator: tools/machinetypes.csv and build/gcp.yml, "
        f"commit {commit[0]} of {commit[1]}",
        **_offers(machines, offered, sorted(surveyed)),
    }


def prices(
    list_of_prices: Path,
    us_east_1: Path | None,
    repository: Path,
    types: Mapping[str, tuple[str, ...] | None],
) -> dict[str, Any]:
    """USD an hour by type and region, of types in the tables and regions that offer them, if these are known.

    A price that is not known is left out.

    Zones of GPUs are those that the list and Google's own answer both name: each has some that the other
    does not, and a zone that is named wrongly costs a failed launch.
    """
    available = {(row["NAME"], row["ZONE"]) for row in _rows(repository, "tools/acceleratortypezone.csv")}
    given = yaml.safe_load(list_of_prices.read_text(encoding="utf-8"))
    machines = {
        name: {region: price for region, price in facts["price"].items() if price is not None}
        for provider in given["machines"].values()
        for name, facts in provider.items()
    }
    if us_east_1 is not None:
        # The file lists several regions' partitions; its first map is us-east-1's.
        for name, price in re.findall(
            r'"([a-z0-9.-]+\.[a-z0-9-]+)": ([0-9.]+)', us_east_1.read_text("utf-8")
        ):
            machines.setdefault(name, {}).setdefault("us-east-1", float(price))
    attachable = {
        name.lower(): {
            "zones": [zone for zone in gpu["zones"] if (f"nvidia-tesla-{name.lower()}", zone) in available],
            "price": gpu["price"],
            "spot_price": gpu["spot"],
        }
        for name, gpu in given["accelerators_gcp"].items()
        if name in ("V100", "T4")
    }
    machines = {
        name: {region: price for region, price in by.items() if _is_offered(region, types[name])}
        for name, by in machines.items()
        if name in types
    }
    return {
        "date": max(str(source["date"]) for source in given["sources"].values() if _is_date(source["date"])),
        "source": {name: _origin(source) for name, source in given["sources"].items()},
        "attachable": attachable,
        "machines": {name: by_region for name, by_region in sorted(machines.items()) if by_region},
    }


def _is_offered(region: str, regions: tuple[str, ...] | None) -> bool:
    return regions is None or region in regions


def _is_date(value: object) -> bool:
    return re.fullmatch(r"\d{4}-\d{2}-\d{2}", str(value)) is not None


def _origin(source: Mapping[str, Any]) -> str:
    paths = ", ".join(source.get("paths") or [source["path"]])
    return f"{source['repo']} {paths}, commit {source['commit']}; date: {source['date']}"


def _offers(
    machines: dict[str, dict[str, Any]], offered: Mapping[str, list[str]], surveyed: list[str]
) -> dict[str, Any]:
    """Machines with the number of their list of regions; those that are offered in all have none."""
    lists: list[list[str]] = []
    for name, facts in machines.items():
        facts.pop("provider", None)
        where = sorted(offered[name])
        if where != sorted(surveyed):
            if where not in lists:
                lists.append(where)
            facts["offer"] = lists.index(where)
    return {"surveyed": surveyed, "offers": lists, "machines": dict(sorted(machines.items()))}


def _git(repository: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(repository), *arguments], check=True, capture_output=True, text=True
    ).stdout


def _show(repository: Path, path: str) -> str:
    return _git(repository, "show", f"HEAD:{path}")


def _rows(repository: Path, path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(_show(repository, path)), delimiter=";"))


def rows(machines: Mapping[str, Mapping[str, Any]]) -> str:
    """Machines as a CSV table, a line each, as `infra.instance_types.catalog.Table` reads it."""
    from infra.instance_types.catalog import COLUMNS

    lines = [",".join(["type", *COLUMNS])]
    for name, facts in machines.items():
        gpu = facts.get("accelerator") or {}
        row = {**facts, "accelerator": gpu.get("type"), "count": gpu.get("count")}
        fields = (row.get(column) for column in COLUMNS)
        words = (
            str(int(field)) if isinstance(field, bool) else str(field)
            for field in fields
            if field is not None
        )
        lines.append(",".join([name, *("" if row.get(c) is None else next(words) for c in COLUMNS)]))
    return "\n".join(lines) + "\n"


def price_rows(machines: Mapping[str, Mapping[str, float]]) -> str:
    """Prices as a CSV table."""
    lines = [f"{name},{region},{usd}" for name, by in machines.items() for region, usd in sorted(by.items())]
    return "\n".join(["type,region,usd_hour", *lines]) + "\n"


def main() -> None:
    """Write the surveys."""
    parser = argparse.ArgumentParser(description="Make the surveys of infra/instance_types/facts/.")
    parser.add_argument("--google", type=Path, help="a clone of google-cloud-pricing-cost-calculator")
    parser.add_argument("--prices", type=Path, help="a list of prices with its sources, YAML")
    parser.add_argument("--us-east-1", type=Path, help="karpenter's generated prices of us-east-1")
    chosen = parser.parse_args()
    surveys = {"ec2": ec2()}
    if chosen.google:
        surveys["google"] = google(chosen.google)
    (FOLDER / "ec2_speeds.csv").write_text(speed_rows(surveys["ec2"].pop("speeds")), encoding="utf-8")
    for name, table in surveys.items():
        _write(name, table, rows(table.pop("machines")))
    if chosen.prices:
        if chosen.google is None:
            parser.error("--prices needs --google: both name the zones of GPUs")
        from infra.instance_types.catalog import tables

        tables.cache_clear()  # they were read before the new ones were written
        types = {name: machine.regions for name, machine in tables().machines.items()}
        table = prices(chosen.prices, chosen.us_east_1, chosen.google, types)
        _write("prices", table, price_rows(table.pop("machines")))


def _write(name: str, about: Mapping[str, Any], csv_rows: str) -> None:
    (FOLDER / f"{name}.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    (FOLDER / f"{name}.csv").write_text(csv_rows, encoding="utf-8")
    print(f"{name}.csv: {csv_rows.count(chr(10)) - 1} rows")


if __name__ == "__main__":
    main()
