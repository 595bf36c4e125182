"""A cluster on AWS behind the shared interface `Cloud`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from infra.aws.access import ssh_proxy
from infra.clouds.commands import ClusterRef
from infra.config.provider_settings import shell_options
from infra.program.launcher import Run
from node.design.model import Access
from operations.aws import account, images, leftovers, machines
from operations.aws.account import explained
from operations.clouds import commands
from operations.clouds.cloud import Machine
from operations.clouds.kept import KeptStorage


class AwsCloud:
    """The `operations.clouds.cloud.Cloud` of a cluster in an account and region.

    Args:
        clients: The boto3 clients of EC2 and S3; by default they are made when they are needed.
    """

    label = "EC2"

    def __init__(self, place: ClusterRef, clients: Sequence[Any] = ()) -> None:
        self.place = place
        self._given = clients

    @functools.cached_property
    def _clients(self) -> Sequence[Any]:
        return self._given or account.clients(self.place, "ec2", "s3")

    @property
    def _ec2(self) -> Any:
        return self._clients[0]

    @property
    def _s3(self) -> Any:
        return self._clients[1]

    def label_of(self, text: str) -> str:
        return text

    def machines(self, *states: str, **labels: str) -> list[Machine]:
        return machines.instances(self._ec2, self.place.cluster, *states, **labels)

    def start(self, stopped: Sequence[Machine]) -> None:
        with explained():
            self._ec2.start_instances(InstanceIds=[machine.id for machine in stopped])

    def end(self, living: Sequence[Machine]) -> None:
        machines.terminate(self._ec2, [machine.id for machine in living])

    def remove_loose(self) -> None:
        machines.remove_loose(self._ec2, self.place.cluster)

    def leftovers(self) -> list[str]:
        cluster = self.place.cluster
        return [
            *machines.leftovers(self._ec2, cluster),
            *images.leftovers(self._ec2, cluster),
            *leftovers.leftovers(functools.partial(account.client, self.place), cluster, commands.say),
        ]

    def kept(self, paths: Mapping[str, str]) -> list[KeptStorage]:
        from operations.aws import kept

        return list(kept.kept(functools.partial(account.client, self.place), self.place.cluster))

    def end_images(self, say: Callable[[str], None]) -> None:
        def builder() -> Any:
            return account.client(self.place, "imagebuilder")

        images.remove_unused(self._ec2, builder, self.place.cluster, say)

    def failure(self, machine: Machine) -> str | None:
        return machines.failed_checks(self._ec2, machine.id)

    def keeps_root_disk(self, host: str) -> bool:
        return False  # it ends with its instance

    def image_slurm(self, image: str) -> str | None:
        return images.slurm(self._ec2, image)

    def bucket(self) -> str | None:
        with explained():
            return next(leftovers.buckets(lambda _: self._s3, self.place.cluster), None)

    def read(self, bucket: str, key: str) -> bytes | None:
        s3 = self._s3
        with explained():
            try:
                content: bytes = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
            except (s3.exceptions.NoSuchKey, s3.exceptions.NoSuchBucket):
                return None
        return content

    def changed(self, bucket: str, key: str) -> float:
        with explained():
            head = self._s3.head_object(Bucket=bucket, Key=key)
        seconds: float = head["LastModified"].timestamp()
        return seconds

    def user(self, access: Access) -> str:
        return str(access.user)

    def proxy(self, access: Access, run: Run) -> str | None:
        return ssh_proxy(self.place.region, access.mode, access.key, run, self.place.provider_settings)

    def console_line(self, machine: Machine) -> str:
        where = f"--region {self.place.region}{shell_options(self.place.provider_settings)}"
        return f"aws ec2 get-console-output --latest {where} --instance-id {machine.id} --output text"

    def stop_line(self, machine: Machine) -> str:
        where = f"--region {self.place.region}{shell_options(self.place.provider_settings)}"
        return f"aws ec2 stop-instances --force {where} --instance-ids {machine.id}"
