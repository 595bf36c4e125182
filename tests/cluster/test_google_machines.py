"""A cluster on Google Cloud on machines that boot: cloud-init's GCE datasource, a fake of the APIs.

All else is real, including Google's guest agent and OS Login's library where the distribution has them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.cloud_machines import CloudMachines
from tests.support.checkout import until
from tests.support.cloud_image import layers
from tests.support.cloud_land import need_clouds, opened
from tests.support.cloud_stack import UNUSED, Cluster, design
from tests.support.fake_metadata import SECRET

# The first test makes the machines' image where there is none.
pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need_clouds()
    if not (layers()[0] / "usr/bin/google_guest_agent").exists():
        pytest.skip("this distribution has no google-guest-agent, which sets up OS Login")
    # Late, because every worker that collects the tests imports this file, and the SDK takes it a second.
    from tests.support.google_land import GoogleLand

    plan = design("gcp", "europe-west4", "filestore")
    folder = tmp_path_factory.mktemp("gcp")
    with opened(GoogleLand(folder / "l", plan)) as land:
        yield Cluster(land, plan, folder / "project")


def test_people_are_those_of_os_login_on_every_machine(cluster: Cluster) -> None:
    """Google's agent has set OS Login up, as the metadata says. bob's process asks the guard's proxy."""
    for user in (None, "bob"):
        said = cluster.sh("getent -s oslogin passwd ada", user=user)
        assert said == "ada:*:2001:2001::/home/ada:/bin/bash"


class TestGoogle(CloudMachines):
    datasource = "GCE"

    # By default test_aws_machines.py shows it of a login machine and an open partition. What users, jobs and
    # containers of Google's other machines get is tried by default here, too, in the two tests around it.
    @pytest.mark.wide
    def test_only_root_has_a_machines_identity_unless_the_stack_file_opens_it(self, cluster: Cluster) -> None:
        super().test_only_root_has_a_machines_identity_unless_the_stack_file_opens_it(cluster)

    # By default test_aws_machines.py reboots a head, which takes the same steps.
    @pytest.mark.wide
    def test_a_head_that_reboots_keeps_its_queue_and_its_nodes(self, cluster: Cluster) -> None:
        super().test_a_head_that_reboots_keeps_its_queue_and_its_nodes(cluster)

    def test_a_boot_that_fails_is_told_at_once_with_its_cause(self, cluster: Cluster) -> None:
        """Not when Slurm's time for a resume is up, which is minutes later. The machine itself says it."""
        cluster.sh("touch /home/no-licence")
        job = cluster.submit("true", "--output=/dev/null", f"--nodelist={UNUSED}")

        def told() -> str:
            shown = cluster.sh(f"scontrol --oneliner show job {job}")
            return shown.partition("AdminComment=")[2] if "AdminComment=bootstrap" in shown else ""

        said = until(told, 120, "the cause")
        cluster.sh(f"scancel {job}; rm /home/no-licence")
        assert said.startswith(
            "bootstrap: step hooks: hook 0 (hooks/people.sh) ended with status 9: no licence"
        )
        until(lambda: UNUSED not in {one.host for one in cluster.land.running()}, 120, "its end")

    def test_all_goes_down_and_nothing_is_left(self, cluster: Cluster) -> None:
        # Here, because pytest runs a test that a subclass changes after those that it does not change.
        super().test_all_goes_down_and_nothing_is_left(cluster)

    def after_a_notice_of(self, cluster: Cluster, node: str) -> None:
        """The node's own machine is given up, as if Google had told it so."""

        def gone() -> bool:
            return node not in {one.host for one in cluster.land.running()}

        until(gone, 120, f"the end of {node}")
        said = cluster.sh("cat /var/log/slurm/elastic.log")
        assert f"evacuates {node}: preempted: the cloud takes this machine at " in said

    def secret_of(self, cluster: Cluster) -> dict[str, str]:
        return {"secret": SECRET}
