"""Boots that failed, by partition: the first may be one node's own trouble, the next are everybody's."""

from __future__ import annotations

from infra.node.elastic.errors import POLICIES, ErrorClass


class FailedBoots:
    """Counts failures in a row. Times are seconds since the epoch, as a machine's launch is."""

    def __init__(self) -> None:
        self._row: dict[str, tuple[int, float]] = {}

    def failed(self, partition: str, now: float) -> float:
        """Note a failure. Returns the seconds for which no machine is to be asked for; 0 after the first."""
        count = self._row.get(partition, (0, 0.0))[0] + 1
        self._row[partition] = (count, now)
        if count == 1:
            return 0.0
        policy = POLICIES[ErrorClass.BOOTSTRAP]
        return float(min(policy.backoff * 2 ** (count - 2), policy.backoff_max))

    def adopt(self, partition: str, now: float) -> None:
        """An earlier daemon had stopped this partition: the next failure is not the first."""
        self._row.setdefault(partition, (2, now))

    def failing(self, partition: str) -> bool:
        """Whether the last boot that ended had failed."""
        return partition in self._row

    def came_up(self, partition: str, launched: float) -> None:
        """A machine of the partition became a node: if it was launched after the failures, they are over."""
        if partition in self._row and launched > self._row[partition][1]:
            del self._row[partition]
