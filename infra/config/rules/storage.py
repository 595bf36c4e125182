"""Rules of storage: settings and sizes of each kind, mount paths, and the speed of disks."""

from __future__ import annotations

import re

from infra.config.fields import gs_bucket
from infra.config.mistakes import Location
from infra.config.placeholders import is_placeholder
from infra.config.rules.context import CLUSTER, MISSING, Context
from infra.config.rules.existing_storage import check_end, check_existing
from infra.config.storage import BucketConfig, Gp3Config, LocalScratch, SharedStorage, StateStorage
from infra.instance_types.catalog import InstanceType
from node.design.model import STATE
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
    _state(c, at)
    parts = {name: getattr(c.cluster.storage, name) for name in type(c.cluster.storage).model_fields}
    buckets, state = parts.pop("buckets"), parts.pop("state")
    given = {name: part for name, part in parts.items() if part is not None}
    if c.provider == "local":
        for name in [*given, *(["buckets"] if buckets else []), *(["state"] if state else [])]:
            c.add(
                "storage.local",
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
    disks: dict[str, SharedStorage | LocalScratch] = dict(given)
    if isinstance(state, StateStorage):
        disks["state"] = disk = state.as_shared()
        _shared(c, disk, (*at, "state"))
    _twice(c, disks, at)
    taken: dict[str, str] = {"state": STATE} if c.cluster.keeps_state() else {}
    for name in dict.fromkeys(["home", "apps", *given]):
        part = given.get(name, SharedStorage())
        taken[name] = part.path if isinstance(part, LocalScratch) else part.mounted_at(name)
    for index, bucket in enumerate(buckets):
        _bucket(c, bucket, taken, (*at, "buckets", index))
        taken[f"buckets[{index}]"] = bucket.path


def _state(c: Context, at: Location) -> None:
    """Check where Slurm's state is, and that only a disk of its own is described."""
    where, chosen, part = (
        (*CLUSTER, "controller", "state"),
        c.cluster.controller.state,
        c.cluster.storage.state,
    )
    if chosen is not None and c.cluster.has_process_machines():
        c.add(
            "state.processes",
            where,
            chosen,
            "nothing where machines are processes: their files outlive the controller anyway",
            "remove state, or write local: {isolation: container}",
        )
    if part is None or c.provider == "local":
        return
    if not c.cluster.keeps_state():
        c.add(
            "state.not-kept",
            (*at, "state"),
            part.model_dump(exclude_unset=True),
            "a disk for the state only with controller.state: kept",
            "write controller: {state: kept}, or remove it",
        )
    elif part.existing is not None and part.as_shared().is_export():
        c.add(
            "state.export",
            (*at, "state", "existing"),
            part.existing,
            "a disk, which one machine has at a time: an NFS export cannot prove that",
            "name a volume (vol-…) or a persistent disk, or remove existing",
        )


def _bucket(c: Context, bucket: BucketConfig, taken: dict[str, str], at: Location) -> None:
    scheme = {"aws": "s3://", "gcp": "gs://"}[c.provider]
    if not bucket.bucket.startswith(scheme):
        c.add("bucket.scheme", (*at, "bucket"), bucket.bucket, f"{scheme}… on {c.provider}")
    elif c.provider == "gcp" and not gs_bucket(bucket.bucket.removeprefix(scheme).partition("/")[0]):
        c.add("bucket.name", (*at, "bucket"), bucket.bucket, "the name of a bucket")
    if SYSTEM.fullmatch(bucket.path):
        c.add(
            "mount.system-path",
            (*at, "path"),
            bucket.path,
            "a directory that is not the system's",
            "for example /data",
        )
    for other, path in taken.items():
        if f"{bucket.path}/".startswith(f"{path}/") or f"{path}/".startswith(f"{bucket.path}/"):
            c.add(
                "mount.inside-other",
                (*at, "path"),
                bucket.path,
                f"a path apart from {other}'s, {path}",
                "give it another path",
            )


def _twice(c: Context, given: dict[str, SharedStorage | LocalScratch], at: Location) -> None:
    """Refuse the same existing disk or file system at two paths."""
    seen: dict[str, str] = {}
    for name, part in given.items():
        if isinstance(part, SharedStorage) and part.existing is not None:
            other = seen.setdefault(part.existing, name)
            if other != name:
                c.add(
                    "existing.twice",
                    (*at, name, "existing"),
                    part.existing,
                    f"one of its own: it is {other} already",
                )


def _shared(c: Context, part: SharedStorage, at: Location) -> None:
    if c.provider not in KINDS[part.kind]:
        kinds = [kind for kind, providers in KINDS.items() if c.provider in providers]
        c.add("storage.kind", (*at, "kind"), part.kind, f"one of {', '.join(kinds)} on {c.provider}")
        return
    for key in sorted(part.model_fields_set - EVERYWHERE - SETTINGS[part.kind]):
        if getattr(part, key) is not None:
            takes = ", ".join(sorted(SETTINGS[part.kind])) or "no settings"
            c.add(
                "storage.other-kind",
                (*at, key),
                getattr(part, key),
                f"with kind {part.kind}: {takes}",
                f"remove {key}",
            )
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
        c.add(
            "storage.disk-too-small",
            at,
            size,
            f"at least {least} GiB: Google Cloud has no smaller disk",
            f"write {least}",
        )
    elif size > MOST_NFS:
        c.add(
            "storage.disk-too-large",
            at,
            size,
            f"at most {MOST_NFS} GiB: one disk",
            "take a file system service",
        )


def _filestore(c: Context, part: SharedStorage, at: Location) -> None:
    """Check the size against the limits of the Filestore API."""
    tier = part.tier or "BASIC_HDD"
    ranges, size, where = FILESTORE[tier], part.size_gib, (*at, "size_gib")
    words = [
        f"{least} to {most}" + (f" in steps of {step}" if step > 1 else "") for least, most, step in ranges
    ]
    allowed = f"{', or '.join(words)} GiB with {tier}"
    if size is None:
        c.add("filestore.size-missing", where, MISSING, allowed, f"write size_gib: {ranges[0][0]}")
        return
    if any(least <= size <= most and (size - least) % step == 0 for least, most, step in ranges):
        return
    least, most, step = ranges[-1]
    above = least + max(0, -(-(size - least) // step)) * step
    nearest = ranges[0][0] if size < ranges[0][0] else min(above, most)
    c.add("filestore.size", where, size, allowed, f"take {nearest}")


def _fsx(c: Context, part: SharedStorage, at: Location) -> None:
    """Check size and throughput against the limits of the FSx API."""
    deployment, disks = part.lustre_deployment(), part.storage_type or "SSD"
    if disks == "HDD" and deployment != "PERSISTENT_1":
        c.add(
            "fsx.hdd",
            (*at, "storage_type"),
            "HDD",
            f"SSD with {deployment}",
            "HDD needs deployment: PERSISTENT_1",
        )
        return
    speeds = THROUGHPUT.get((deployment, disks), ())
    listed = ", ".join(map(str, speeds))
    if speeds and part.throughput is None:
        c.add(
            "fsx.throughput-missing",
            (*at, "throughput"),
            MISSING,
            f"one of {listed} (MB/s a TiB) with {deployment}",
        )
        return
    if speeds and part.throughput not in speeds:
        c.add(
            "fsx.throughput",
            (*at, "throughput"),
            part.throughput,
            f"one of {listed} (MB/s a TiB) with {deployment} on {disks}",
        )
        return
    if not speeds and part.throughput is not None:
        c.add(
            "fsx.no-throughput",
            (*at, "throughput"),
            part.throughput,
            f"no throughput with {deployment}",
            "remove it",
        )
    _scratch_1_export(c, part, at)
    first: tuple[int, ...] = (1200, 2400)
    step = 2400
    if deployment == "SCRATCH_1":
        step = 3600
    elif disks == "HDD":
        first, step = (), {12: 6000, 40: 1800}[part.throughput or 12]
    allowed = f"{', '.join([*map(str, first), f'multiples of {step}'])} GiB with {deployment}"
    size = part.size_gib
    if size is None:
        c.add(
            "fsx.size-missing",
            (*at, "size_gib"),
            MISSING,
            allowed,
            f"write size_gib: {first[0] if first else step}",
        )
    elif size not in first and size % step:
        around = sorted({*first, size // step * step, (size // step + 1) * step} - {0})
        nearest = [n for n in around if n < size][-1:] + [n for n in around if n > size][:1]
        c.add("fsx.size", (*at, "size_gib"), size, allowed, f"take {' or '.join(map(str, nearest))}")


def _scratch_1_export(c: Context, part: SharedStorage, at: Location) -> None:
    """Check that SCRATCH_1 has one bucket (FSx API, CreateFileSystemLustreConfiguration)."""
    source, target = part.s3_import, part.s3_export
    if part.lustre_deployment() != "SCRATCH_1" or target is None or is_placeholder(source):
        return
    if source is None or _bucket_of(source) != _bucket_of(target):
        allowed = "a folder in the bucket of s3_import: with SCRATCH_1 FSx writes back to no other"
        c.add(
            "fsx.export-bucket",
            (*at, "s3_export"),
            target,
            allowed,
            "take deployment: SCRATCH_2, or give both in one bucket",
        )


def _bucket_of(address: str) -> str:
    return address.removeprefix("s3://").partition("/")[0]


def _local_scratch(c: Context, at: Location) -> None:
    machines = [c.instance_type(p.instance_type) for _, p in c.groups()]
    if any(m is None for m in machines) or any(m and _own_disks(m) for m in machines):
        return
    if c.cluster.batch is None:
        first = c.cluster.partitions[0].instance_type if c.cluster.partitions else ""
        having = c.facts.matching(first, c.provider, _own_disks)
        c.add(
            "local-scratch.no-nvme",
            at,
            {"kind": "nvme"},
            "a partition whose machine has NVMe disks",
            f"machines with NVMe: {having}" if having else "remove it",
        )


def _own_disks(machine: InstanceType) -> int:
    """Return the disks for a local scratch: its NVMe disks in GiB, or the number of local SSDs."""
    return machine.nvme_gib or machine.local_ssds


def _paths(c: Context, given: dict[str, SharedStorage | LocalScratch], at: Location) -> None:
    paths: dict[str, str] = {"state": STATE} if c.cluster.keeps_state() else {}
    # Without a key in the file, /home and /apps are still there: the controller exports them.
    names = dict.fromkeys(["home", "apps", *given])
    kinds = {"state": "nfs"} | {name: given.get(name, SharedStorage()).kind for name in names}
    for name in names:
        part = given.get(name, SharedStorage())
        path = part.path if isinstance(part, LocalScratch) else part.mounted_at(name)
        where = (*at, name, "path") if name in given else (*at, name)
        if SYSTEM.fullmatch(path):
            c.add(
                "mount.system-path",
                where,
                path,
                "a directory that is not the system's",
                "for example /scratch",
            )
        for other, taken in paths.items():
            if path == taken:
                c.add(
                    "mount.twice",
                    where,
                    path,
                    f"a path of its own: {other} is mounted there",
                    "give one another path",
                )
            elif f"{path}/".startswith(f"{taken}/") or f"{taken}/".startswith(f"{path}/"):
                c.add(
                    "mount.inside-other",
                    where,
                    path,
                    f"a path apart from {other}'s, {taken}",
                    "mounts inside mounts hide files",
                )
            elif part.kind == kinds[other] and _spelled(c, path) == _spelled(c, taken):
                allowed = f"a path that is not spelled like {taken}, with hyphens for slashes"
                what = "disks" if part.kind == "nfs" else "file systems"
                c.add(
                    "mount.same-name",
                    where,
                    path,
                    allowed,
                    f"both {what} would be called {c.cluster.name}-{_spelled(c, path)}",
                )
        paths[name] = path


def _spelled(c: Context, path: str) -> str:
    """Return a directory's part in the names of its disk or file system, which must differ from others'."""
    # AWS takes names as they are; on Google Cloud a path with other characters gets a digest.
    plain = path.strip("/").replace("/", "-")
    return part_of(path, NAME_LENGTH - len(f"{c.cluster.name}-")) if c.provider == "gcp" else plain


DISK_GIB = 50
"""The root disk's size where the stack file gives none (`infra.design`)."""
STATE_GIB = 20
"""The same of the disk with Slurm's state, on a cloud."""
IOPS_PER_GIB, IOPS_PER_MIBS = 500, 4
"""The ratios of gp3: IOPS for each GiB and for each MiB/s (EBS user guide, "General Purpose SSD volumes")."""
INCLUDED_IOPS = 3000
"""What every gp3 volume has."""


def check_performance(c: Context) -> None:
    """Check the performance of every disk against EBS's ratios."""
    cluster = c.cluster
    disks = [
        ((*CLUSTER, "controller"), cluster.controller.gp3, cluster.controller.disk_gib or DISK_GIB),
        ((*CLUSTER, "login"), cluster.login.gp3, cluster.login.disk_gib or DISK_GIB),
    ]
    for where, partition in c.groups():
        if partition.aws is not None:
            at = (*where, "aws")
            disks.append((at, partition.aws.gp3, partition.disk_gib or DISK_GIB))
    for name in ("home", "apps", "scratch"):
        part = getattr(cluster.storage, name)
        if part is not None and part.kind == "nfs" and part.existing is None:
            disks.append(((*CLUSTER, "storage", name), part.gp3, part.size_gib or DISK_GIB))
    if (state := cluster.storage.state) is not None and state.existing is None:
        disks.append(((*CLUSTER, "storage", "state"), state.gp3, state.size_gib or STATE_GIB))
    for at, gp3, size in disks:
        if gp3 is None:
            continue
        if c.provider != "aws":
            c.add(
                "gp3.not-aws",
                (*at, "gp3"),
                gp3.model_dump(exclude_none=True),
                "nothing: gp3 is AWS's",
                "remove gp3",
            )
        else:
            _gp3_ratios(c, gp3, size, (*at, "gp3"))


def _gp3_ratios(c: Context, gp3: Gp3Config, size: int, at: Location) -> None:
    iops = gp3.iops or INCLUDED_IOPS
    # Every volume has the included IOPS, however small it is.
    if iops > (most := max(INCLUDED_IOPS, size * IOPS_PER_GIB)):
        allowed = f"at most {most} with {size} GiB: {IOPS_PER_GIB} for each GiB (EBS user guide)"
        c.add("gp3.iops", (*at, "iops"), iops, allowed, f"take {-(-iops // IOPS_PER_GIB)} GiB, or fewer")
    if gp3.throughput_mibs is not None and gp3.throughput_mibs * IOPS_PER_MIBS > iops:
        allowed = f"at most {iops // IOPS_PER_MIBS} MiB/s with {iops} IOPS: a quarter (EBS user guide)"
        c.add(
            "gp3.throughput",
            (*at, "throughput_mibs"),
            gp3.throughput_mibs,
            allowed,
            f"take iops: {gp3.throughput_mibs * IOPS_PER_MIBS}",
        )
