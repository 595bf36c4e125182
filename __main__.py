"""The Pulumi program: the stack file's cluster, and its outputs."""

import pulumi

from infra import bundle, config
from infra.config import placeholders
from infra.config.load import engine_secrets, engine_values
from infra.errors import UserError
from infra.program import launcher, mode, owner
from infra.program.stack import Stack
from infra.slurm_cluster import SlurmCluster


def main() -> None:
    """Declare the stack's resources."""
    stack = config.parse(engine_values(), pulumi.get_stack(), secret=engine_secrets())
    if mode.current() == "pulumi":
        owner.refuse_other_organization(Stack(mode.folder(), pulumi.get_stack(), pulumi.get_organization()))
    if mode.current() != "plan":
        placeholders.refuse(f"Pulumi.{stack.stack}.yaml", stack.placeholders)
    if mode.current() != "plan" and stack.cluster.provider != "local":
        # For `loginSsh`. That of a local stack has the path itself.
        launcher.remember(bundle.ROOT, launcher.CHECKOUT)
    cluster = SlurmCluster(stack.cluster.name, stack, kept=mode.kept_benchmark())
    for name, value in cluster.outputs.items():
        pulumi.export(name, value)


try:
    main()
except UserError as error:
    if mode.current() != "pulumi":
        raise
    # The engine prints this one as it is; any other with a traceback.
    raise pulumi.RunError(str(error)) from error
