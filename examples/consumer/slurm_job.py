"""A Slurm job as a Pulumi resource: submitted once, cancelled when it is destroyed or changed."""

from __future__ import annotations

import hashlib
import shlex

import pulumi
import pulumi_command as command
from slurm_stacks import ClusterOutput

# Runs on the login machine, by `sh -s submit` or `sh -s cancel`. The job's folder is named by what is to run:
# the same wish is the same job, however often it is submitted, also when the connection broke meanwhile.
LOGIN_SCRIPT = """\
set -eu
folder={folder}
case $1 in
submit)
    mkdir -p "$folder"
    cd "$folder"
    exec 9>.lock
    flock 9
    if [ ! -s jobid ]; then
        cat >job.sh <<'{end}'
{script}
{end}
        id=$(sbatch --parsable --output=job-%j.out {options} job.sh)
        echo "${{id%%;*}}" >jobid
    fi
    cat jobid
    ;;
cancel)
    # No such folder: the cluster was made anew, and knows nothing of this job.
    cd "$folder" 2>/dev/null || exit 0
    if [ -s jobid ]; then
        scancel --quiet "$(cat jobid)" || echo "job $(cat jobid) was not cancelled" >&2
        rm jobid
    fi
    ;;
esac
"""


class SlurmJob(pulumi.ComponentResource):
    """A batch job on a cluster of slurm-stacks.

    It is submitted when it is created. A changed script or option is another job: the one before is cancelled
    first. So it is when the cluster was destroyed and made anew. Its files stay on the cluster, in
    `<cluster.shared>/jobs/<project>-<stack>-<name>/`, until the cluster goes.

    Args:
        script: text of the batch script.
        options: for `sbatch`, over those of the script.

    Attributes:
        job_id: Slurm's id.
        output: the file with what the job prints, on the login machine.
    """

    def __init__(
        self,
        name: str,
        *,
        cluster: pulumi.Output[ClusterOutput],
        script: str,
        options: pulumi.Input[list[str]],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("slurm-consumer:index:SlurmJob", name, None, opts)
        place = f"{pulumi.get_project()}-{pulumi.get_stack()}-{name}"
        digest = pulumi.Output.from_input(options).apply(lambda given: _digest(script, given))
        folder = pulumi.Output.all(cluster, digest).apply(lambda v: f"{_shared(v[0])}/jobs/{place}/{v[1]}")
        login = cluster.apply(_login)
        submitted = command.local.Command(
            f"{name}-job",
            create=pulumi.Output.concat(login, " sh -s submit"),
            # Another way in is no other job: what is submitted already only says its id again.
            update=pulumi.Output.concat(login, " sh -s submit"),
            # A cluster that is gone has taken the job along, and must not keep this stack from going.
            delete=pulumi.Output.concat(
                "timeout 60 ", login, " sh -s cancel || echo 'the cluster does not answer: not cancelled' >&2"
            ),
            stdin=pulumi.Output.all(folder, options).apply(lambda v: _login_script(v[0], script, v[1])),
            triggers=[digest, cluster.apply(lambda found: found.id)],
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )
        # The last word: a login machine may greet first.
        self.job_id = submitted.stdout.apply(lambda text: text.split()[-1])
        self.output = pulumi.Output.concat(folder, "/job-", self.job_id, ".out")
        self.register_outputs({"job_id": self.job_id, "output": self.output})


def _digest(script: str, options: list[str]) -> str:
    return hashlib.sha256("\0".join([script, *options]).encode()).hexdigest()[:12]


def _login_script(folder: str, script: str, options: list[str]) -> str:
    return LOGIN_SCRIPT.format(
        folder=shlex.quote(folder),
        script=script.rstrip("\n"),
        options=shlex.join(options),
        end=f"END-OF-JOB-{_digest(script, options)}",
    )


def _login(cluster: ClusterOutput) -> str:
    if cluster.login is None:
        raise pulumi.RunError(f"cluster {cluster.name} has no login machine: it is AWS Batch, and not Slurm")
    return cluster.login.ssh


def _shared(cluster: ClusterOutput) -> str:
    if cluster.shared is None:
        raise pulumi.RunError(f"cluster {cluster.name} has no shared folder: it is AWS Batch, and not Slurm")
    return cluster.shared
