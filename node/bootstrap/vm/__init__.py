"""The parts of `machine_steps` for Ubuntu 24.04 with systemd: packages, disks, drivers, mounts, names, users.

These parts read the following keys of `Site.driver`. The elastic driver has keys of its own.

    region     the region of the cloud's services (AWS)
    cluster    the prefix of the machines' names (Google Cloud)
    bucket     the name of the cluster's bucket
    secret     the secret that holds munge's key: its name or ARN; `projects/<project>/secrets/<name>`
    mounts     JSON: a mount's path -> its source. For nfs the source is the controller's disk: on AWS
               {"volume": "vol-…", "device": "/dev/sdf"}, the volume's id and the name under which it was
               attached; on Google Cloud {"device": "/dev/disk/by-id/google-…"}, by the device name (by
               default slurm-stacks-home for /home). For efs, filestore and fsx_lustre the source is
               {"source": "…"} as mount(8) takes it (`<dns>:/`, `<dns>@tcp:/<name>`).
    log_group  the log group in CloudWatch; without it logs are not sent
    logs       "true": logs are sent to Cloud Logging
    cidr       the network whose machines may mount the controller's exports; without it every machine that
               can reach the controller may
"""
