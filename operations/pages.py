"""The official installation pages of what this project does not install itself."""

from __future__ import annotations

PULUMI = "https://www.pulumi.com/docs/install/"
GCLOUD = "https://cloud.google.com/sdk/docs/install"
AWS_CLI = "https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html"
SESSION_MANAGER = "https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-working-with-install-plugin.html"
DOCKER = "https://docs.docker.com/engine/install/"
SLURM = "https://slurm.schedmd.com/quickstart_admin.html"
OPENSSH = "https://www.openssh.com/portable.html"
PYTHON = "https://www.python.org/downloads/"
