"""A cluster on Google Cloud on machines that boot: cloud-init's GCE datasource, a fake of the APIs.

All else is real, Google's guest agent and OS Login's library among it, where the distribution has them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.cloud_machines import CloudMachines
from tests.support.cloud_land import opened
from tests.support.cloud_stack import Cluster, design
from tests.support.fake_metadata import SECRET
from tests.support.google_land import GoogleLand


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    plan = design("gcp", "europe-west4", "filestore")
    folder = tmp_path_factory.mktemp("gcp")
    with opened(GoogleLand(folder / "l", plan)) as land:
        yield Cluster(land, plan, folder / "project")


class TestGoogle(CloudMachines):
    datasource = "GCE"

    def secret_of(self, cluster: Cluster) -> dict[str, str]:
        return {"secret": SECRET}
