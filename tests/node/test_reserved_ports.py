"""Clusters of tests that run at the same time never have a port in common."""

from __future__ import annotations

from tests.node.slurm_cluster import OWN_PORTS, reserved_range


def test_two_clusters_with_one_seed_get_different_ports() -> None:
    held, found = [], []
    try:
        for _ in range(3):
            first, sockets = reserved_range(130, 991)
            held += sockets
            found.append(set(range(first, first + 130)))
    finally:
        for one in held:
            one.close()
    assert len(set.union(*found)) == 3 * 130
    assert all(ports <= set(OWN_PORTS) for ports in found)
    again, sockets = reserved_range(130, 991)
    for one in sockets:
        one.close()
    assert again == min(found[0]), "what is over is free again"
