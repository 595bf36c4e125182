"""Checks of storage: which settings and sizes a kind takes, and where directories may be mounted."""

from __future__ import annotations

import re

from infra.config.checks.context import CLUSTER, MISSING, Context
from infra.config.checks.kept_storage import check_end, check_existing, check_performance
from infra.config.fields import gs_bucket
from infra.config.mistakes import Location
from infra.config.placeholders import is_placeholder
from infra.config.storage import BucketConfig, LocalScratch, SharedStorage
from infra.instance_types.catalog import InstanceType
from node.elastic.drivers.gce.names import NAME_LENGTH, part_of

KINDS = {"nfs": ("aws", "gcp"), "efs": ("aws",), "fsx_lustre": ("aws",), "filestore": ("gcp",)}
SETTINGS = {
    "nfs": {"size_gib", "gp3"},
    "efs": set(),
    "fsx_lustre": {"size_gib", "deployment", "storage_type", "throughput", "s3_import", "s3_export"},
    "filestore": {"size_gib", "tier"},
}
EVERYWHERE = {"kind", "path", "existing", "security_group", "keep", "snapshot", "restore"}
"""The keys that every kind takes, or that `kept_storage` refuses with a reason."""
# Directories of the system: a mount over one of them makes the machine unusable.
SYSTEM = re.compile(r"/(bin|boot|dev|etc|lib|lib64|proc|root|run|sbin|sys|tmp|usr|var)(/.*)?")

# Tier of Filestore -> ranges of sizes: least and most GiB, and the step between two sizes.
FILESTORE: dict[str, tuple[tuple[int, int, int], ...]] = {
    "BASIC_HDD": ((1024, 65433, 1),),
    "BASIC_SSD": ((2560, 65433, 1),),
    "ZONAL": ((100, 10239, 1), (10240, 102400, 2560)),
    # The least is 100 in some regions; Google does not say which.
    "REGIONAL": ((1024, 10239, 1), (10240, 102400, 2560)),
    "ENTERPRISE": ((1024, 10240, 256),),
    "HIGH_SCALE_SSD": ((10240, 102400, 2560),),
}
# Deployment type and disks of a persistent FSx -> allowed MB/s for each TiB.
THROUGHPUT = {
    ("PERSISTENT_1", "SSD"): (50, 100, 200),
    ("PERSISTENT_1", "HDD"): (12, 40),
    ("PERSISTENT_2", "SSD"): (125, 250, 500, 1000),
}
MOST_NFS = 16384
LEAST_NFS = {"aws": 1, "gcp": 10}
"""Provider -> its smallest disk, GiB."""


def check_storage(c: Context) -> None:
    at = (*CLUSTER, "storage")
    check_performance(c)
    parts = {name: getattr(c.cluster.storage, name) for name in type(c.cluster.storage).model_fields}
    buckets = parts.pop("buckets")
    given = {name: part for name, part in parts.items() if part is not None}
    if c.provider == "local":
        for name in [*given, *(["buckets"] if buckets else [])]:
            c.add(
                (*at, name),
                "nothing that applies",
                "no storage: local machines share this machine's own directories",
                f"remove {name}:",
            )
        return
    for name, part in given.items():
        if isinstance(part, SharedStorage):
            _shared(c, part, (*at, name))
        else:
            _local_scratch(c, (*at, name))
    _paths(c, given, at)
    _twice(c, given, at)
    taken: dict[str, str] = {}
    for name in dict.fromkeys(["home", "apps", *given]):
        part = given.get(name, SharedStorage())
        taken[name] = part.path if isinstance(part, LocalScratch) else part.mounted_at(name)
    for index, one in enumerate(buckets):
        _bucket(c, one, taken, (*at, "buckets", index))
        taken[f"buckets[{index}]"] = one.path


def _bucket(c: Context, one: BucketConfig, taken: dict[str, str], at: Location) -> None:
    scheme = {"aws": "s3://", "gcp": "gs://"}[c.provider]
    if not one.bucket.startswith(scheme):
        c.add((*at, "bucket"), one.bucket, f"{scheme}… on {c.provider}", "")
    elif c.provider == "gcp" and not gs_bucket(one.bucket.removeprefix(scheme).partition("/")[0]):
        c.add((*at, "bucket"), one.bucket, "the name of a bucket", "")
    if SYSTEM.fullmatch(one.path):
        c.add((*at, "path"), one.path, "a directory that is not the system's", "for example /data")
    for other, path in taken.items():
        if f"{one.path}/".startswith(f"{path}/") or f"{path}/".startswith(f"{one.path}/"):
            c.add((*at, "path"), one.path, f"a path apart from {other}'s, {path}", "give it another path")


def _twice(c: Context, given: dict[str, SharedStorage | LocalScratch], at: Location) -> None:
    """Refuse the same existing disk or file system at two paths."""
    seen: dict[str, str] = {}
    for name, part in given.items():
        if isinstance(part, SharedStorage) and part.existing is not None:
            other = seen.setdefault(part.existing, name)
            if other != name:
                c.add((*at, name, "existing"), part.existing, f"one of its own: it is {other} already", "")


def _shared(c: Context, part: SharedStorage, at: Location) -> None:
    if c.provider not in KINDS[part.kind]:
        kinds = [kind for kind, providers in KINDS.items() if c.provider in providers]
        c.add((*at, "kind"), part.kind, f"one of {', '.join(kinds)} on {c.provider}", "")
        return
    for key in sorted(part.model_fields_set - EVERYWHERE - SETTINGS[part.kind]):
        if getattr(part, key) is not None:
            takes = ", ".join(sorted(SETTINGS[part.kind])) or "no settings"
            c.add((*at, key), getattr(part, key), f"with kind {part.kind}: {takes}", f"remove {key}")
    if part.existing is not None:
        check_existing(c, part, at)
        return
    check_end(c, part, at)
    if part.kind == "fsx_lustre":
        _fsx(c, part, at)
    elif part.kind == "filestore":
        _filestore(c, part, at)
    elif part.kind == "nfs" and part.size_gib is not None:
        _disk(c, part.size_gib, (*at, "size_gib"))


def _disk(c: Context, size: int, at: Location) -> None:
    """Check the disk of a directory that the controller exports."""
    least = LEAST_NFS[c.provider]
    if size < least:
        c.add(at, size, f"at least {least} GiB: Google Cloud has no smaller disk", f"write {least}")
    elif size > MOST_NFS:
        c.add(at, size, f"at most {MOST_NFS} GiB: one disk", "take a file system service")


def _filestore(c: Context, part: SharedStorage, at: Location) -> None:
    """Check the size against the limits of the Filestore API."""
    tier = part.tier or "BASIC_HDD"
    ranges, size, where = FILESTORE[tier], part.size_gib, (*at, "size_gib")
    words = [
        f"{least} to {most}" + (f" in steps of {step}" if step > 1 else "") for least, most, step in ranges
    ]
    allowed = f"{', or '.join(words)} GiB with {tier}"
    if size is None:
        c.add(where, MISSING, allowed, f"write size_gib: {ranges[0][0]}")
        return
    if any(least <= size <= most and (size - least) % step == 0 for least, most, step in ranges):
        return
    least, most, step = ranges[-1]
    above = least + max(0, -(-(size - least) // step)) * step
    nearest = ranges[0][0] if size < ranges[0][0] else min(above, most)
    c.add(where, size, allowed, f"take {nearest}")


def _fsx(c: Context, part: SharedStorage, at: Location) -> None:
    """Check size and throughput against the limits of the FSx API."""
    deployment, disks = part.lustre_deployment(), part.storage_type or "SSD"
    if disks == "HDD" and deployment != "PERSISTENT_1":
        c.add((*at, "storage_type"), "HDD", f"SSD with {deployment}", "HDD needs deployment: PERSISTENT_1")
        return
    speeds = THROUGHPUT.get((deployment, disks), ())
    listed = ", ".join(map(str, speeds))
    if speeds and part.throughput is None:
        c.add((*at, "throughput"), MISSING, f"one of {listed} (MB/s a TiB) with {deployment}", "")
        return
    if speeds and part.throughput not in speeds:
        c.add(
            (*at, "throughput"), part.throughput, f"one of {listed} (MB/s a TiB) with {deployment} on {disks}"
        )
        return
    if not speeds and part.throughput is not None:
        c.add((*at, "throughput"), part.throughput, f"no throughput with {deployment}", "remove it")
    _back(c, part, at)
    first: tuple[int, ...] = (1200, 2400)
    step = 2400
    if deployment == "SCRATCH_1":
        step = 3600
    elif disks == "HDD":
        first, step = (), {12: 6000, 40: 1800}[part.throughput or 12]
    allowed = f"{', '.join([*map(str, first), f'multiples of {step}'])} GiB with {deployment}"
    size = part.size_gib
    if size is None:
        c.add((*at, "size_gib"), MISSING, allowed, f"write size_gib: {first[0] if first else step}")
    elif size not in first and size % step:
        around = sorted({*first, size // step * step, (size // step + 1) * step} - {0})
        nearest = [n for n in around if n < size][-1:] + [n for n in around if n > size][:1]
        c.add((*at, "size_gib"), size, allowed, f"take {' or '.join(map(str, nearest))}")


def _back(c: Context, part: SharedStorage, at: Location) -> None:
    """SCRATCH_1 imports from and exports to one bucket (FSx API, CreateFileSystemLustreConfiguration)."""
    source, target = part.s3_import, part.s3_export
    if part.lustre_deployment() != "SCRATCH_1" or target is None or is_placeholder(source):
        return
    if source is None or _name(source) != _name(target):
        allowed = "a folder in the bucket of s3_import: with SCRATCH_1 FSx writes back to no other"
        c.add((*at, "s3_export"), target, allowed, "take deployment: SCRATCH_2, or give both in one bucket")


def _name(address: str) -> str:
    return address.removeprefix("s3://").partition("/")[0]


def _local_scratch(c: Context, at: Location) -> None:
    machines = [c.instance_type(p.instance_type) for p in c.cluster.partitions]
    if any(m is None for m in machines) or any(m and _own_disks(m) for m in machines):
        return
    if c.cluster.batch is None:
        first = c.cluster.partitions[0].instance_type if c.cluster.partitions else ""
        having = c.facts.matching(first, c.provider, _own_disks)
        c.add(
            at,
            {"kind": "nvme"},
            "a partition whose machine has NVMe disks",
            f"machines with NVMe: {having}" if having else "remove it",
        )


def _own_disks(machine: InstanceType) -> int:
    """The disks for a local scratch: its NVMe disks in GiB, or the number of attached local SSDs."""
    return machine.nvme_gib or machine.local_ssds


def _paths(c: Context, given: dict[str, SharedStorage | LocalScratch], at: Location) -> None:
    paths: dict[str, str] = {}
    # Without a key in the file, /home and /apps are still there: the controller exports them.
    names = dict.fromkeys(["home", "apps", *given])
    kinds = {name: given.get(name, SharedStorage()).kind for name in names}
    for name in names:
        part = given.get(name, SharedStorage())
        path = part.path if isinstance(part, LocalScratch) else part.mounted_at(name)
        where = (*at, name, "path") if name in given else (*at, name)
        if SYSTEM.fullmatch(path):
            c.add(where, path, "a directory that is not the system's", "for example /scratch")
        for other, taken in paths.items():
            if path == taken:
                c.add(where, path, f"a path of its own: {other} is mounted there", "give one another path")
            elif f"{path}/".startswith(f"{taken}/") or f"{taken}/".startswith(f"{path}/"):
                c.add(where, path, f"a path apart from {other}'s, {taken}", "mounts inside mounts hide files")
            elif part.kind == kinds[other] and _spelled(c, path) == _spelled(c, taken):
                allowed = f"a path that is not spelled like {taken}, with hyphens for slashes"
                what = "disks" if part.kind == "nfs" else "file systems"
                c.add(
                    where, path, allowed, f"both {what} would be called {c.cluster.name}-{_spelled(c, path)}"
                )
        paths[name] = path


def _spelled(c: Context, path: str) -> str:
    """Return a directory's part in the names of its disk or file system, which must differ from others'."""
    # AWS takes names as they are; on Google Cloud a path with other characters gets a digest.
    plain = path.strip("/").replace("/", "-")
    return part_of(path, NAME_LENGTH - len(f"{c.cluster.name}-")) if c.provider == "gcp" else plain
