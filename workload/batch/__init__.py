"""The container of an AWS Batch multi-node parallel job: its image and its entry point.

The entry point needs the standard library only. The modules `errors`, `ports`, `result`, `program_record` and
`slurm` of `workload` come with it into the image.
"""
