"""The container of an AWS Batch multi-node parallel job: its image and its entry point.

The entry point needs the standard library only. The image also has the modules `errors`, `ports`, `result`,
`program_record` and `slurm` of `workload`.
"""
