"""What machines of a cloud take beyond `own`: Ubuntu 24.04 with systemd, its packages, disks and drivers.

Of the site's driver settings they read, beside what the elastic driver needs:

    region   where the cloud's services are asked (AWS)
    cluster  begins the names of the machines (Google Cloud)
    bucket   the cluster's, by its name
    secret   the secret for munge's key: its name or ARN; `projects/<project>/secrets/<name>`
    mounts   JSON: a mount's path -> where it comes from. nfs: the controller's disk, on AWS {"volume":
             "vol-…", "device": "/dev/sdf"} by its id and by the name under which it was attached, on Google
             Cloud {"device": "/dev/disk/by-id/google-…"} by its device name (slurm-stacks-home for /home,
             where nothing is said); efs, filestore and fsx_lustre: {"source": "…"} as mount(8) takes it
             (`<dns>:/`, `<dns>@tcp:/<name>`)
    log_group  where logs go in CloudWatch; nowhere without
    logs     "true": they go to Cloud Logging
    cidr     the network whose machines may mount what the controller exports; all that reach it without
"""
