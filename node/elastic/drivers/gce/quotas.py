"""How many more machines the project's quotas allow. Compute Engine tells its capacity only by launching."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from node.design.model import Partition
from node.elastic.driver import AvailableCapacity
from node.elastic.drivers.gce.client import Compute, Resource
from node.elastic.failures import ErrorClass, Failure

QUOTA_SECONDS = 10.0
"""The shortest pause between two queries."""
MODELS = {
    "v100": "NVIDIA_V100", "t4": "NVIDIA_T4", "p100": "NVIDIA_P100", "p4": "NVIDIA_P4", "k80": "NVIDIA_K80",
    "l4": "NVIDIA_L4", "a100": "NVIDIA_A100", "a100_80gb": "NVIDIA_A100_80GB",
}  # fmt: skip
"""Slurm's GRES type -> the beginning of the quota's name."""
_OWN_CPUS = ("n2", "n2d", "t2d", "t2a", "c2", "c2d", "c3", "c3d", "m1", "m2", "m3", "a2", "g2")
"""Machine families with their own quota of vCPUs. The others share `CPUS`."""

_Quotas = Mapping[str, tuple[float, float]]
"""Metric -> its limit and its usage."""


class Quotas:
    """The quotas of the region and of the project, read now and then."""

    def __init__(
        self,
        compute: Compute,
        region: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._compute = compute
        self._region = region
        self._clock = clock
        self._lock = threading.Lock()
        self._asked: float | None = None
        self._known: list[tuple[str, _Quotas]] = []

    def available_capacity(self, partition: Partition, count: int) -> AvailableCapacity:
        """Return how many of `count` more machines every quota allows.

        Raises:
            CallError: Compute Engine refuses, or does not answer.
        """
        best, failure = count, None
        for where, quotas in self._read():
            for metrics, need in _quota_needs(partition):
                metric = next((name for name in metrics if quotas.get(name, (0.0, 0.0))[0] > 0), None)
                metric = metric or next((name for name in metrics if name in quotas), None)
                if metric is None:
                    continue
                limit, usage = quotas[metric]
                fits = max(0, int((limit - usage) // need))
                if fits < best:
                    best = fits
                    message = (
                        f"quota {metric} {where}: {usage:g} of {limit:g} are in use, a node takes {need:g}"
                    )
                    failure = Failure((), ErrorClass.QUOTA, "QUOTA_EXCEEDED", message)
        return AvailableCapacity(best, failure)

    def _read(self) -> list[tuple[str, _Quotas]]:
        with self._lock:
            now = self._clock()
            if self._asked is None or now - self._asked >= QUOTA_SECONDS:
                region, whole = self._compute.quotas(self._region), self._compute.quotas()
                self._known = [
                    (f"in region {self._region}", _quota_limits(region)),
                    ("of the project", _quota_limits(whole)),
                ]
                self._asked = now
            return self._known


def _quota_limits(quotas: Iterable[Resource]) -> _Quotas:
    return {quota.get("metric", ""): (quota.get("limit", 0.0), quota.get("usage", 0.0)) for quota in quotas}


def _quota_needs(partition: Partition) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield what one node takes of each kind of quota.

    Each item has the names of the quota, of which the first with a limit counts, and the amount.
    """
    family, size = partition.instance_type.partition("-")[0], partition.instance_type.rpartition("-")[2]
    cpus = float(size) if size.isdigit() else 0.0
    if cpus:
        metrics = (f"{family.upper()}_CPUS",) if family in _OWN_CPUS else ("CPUS",)
        yield (("PREEMPTIBLE_CPUS", *metrics) if partition.spot else metrics), cpus
        yield ("CPUS_ALL_REGIONS",), cpus
    gpu = partition.accelerator
    if gpu is not None and gpu.type in MODELS:
        name = f"{MODELS[gpu.type]}_GPUS"
        yield ((f"PREEMPTIBLE_{name}", name) if partition.spot else (name,)), float(gpu.count)
        yield ("GPUS_ALL_REGIONS",), float(gpu.count)
    yield ("INSTANCES",), 1.0
