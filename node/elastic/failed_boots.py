"""Failed boots by partition: one may be the fault of a single node, several in a row are the partition's."""

from __future__ import annotations

from node.elastic.failures import POLICIES, ErrorClass


class FailedBoots:
    """The count of boot failures in a row. Times are seconds since the epoch, as for a machine's launch."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, float]] = {}

    def failed(self, partition: str, now: float) -> float:
        """Record a failure.

        Returns:
            Seconds during which no machine of the partition should be launched; 0 after the first failure.
        """
        count = self._failures.get(partition, (0, 0.0))[0] + 1
        self._failures[partition] = (count, now)
        if count == 1:
            return 0.0
        policy = POLICIES[ErrorClass.BOOTSTRAP]
        return float(min(policy.backoff * 2 ** (count - 2), policy.backoff_max))

    def adopt(self, partition: str, now: float) -> None:
        """Record that an earlier daemon had stopped this partition.

        The next failure is then not the first.
        """
        self._failures.setdefault(partition, (2, now))

    def failing(self, partition: str) -> bool:
        """Return whether the partition's last boot to end failed."""
        return partition in self._failures

    def came_up(self, partition: str, launched: float) -> None:
        """Record that a machine became a node. The failures are over if it was launched after them."""
        if partition in self._failures and launched > self._failures[partition][1]:
            del self._failures[partition]
