"""A sweep runs the benchmark on several numbers of nodes, partitions and GPUs, on a cluster that is up.

All jobs are submitted at the start, and each one depends on the one before it, so nobody needs to watch. The
plan is written to a file before the first submit (`cli.commands.sweep.plan`). If this program ends for any
reason, the next `./cluster run` finds the plan, collects the results that came meanwhile, and submits nothing
twice.
"""
