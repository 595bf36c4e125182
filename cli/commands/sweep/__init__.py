"""A sweep runs the benchmark on several numbers of nodes, partitions and GPUs, on a cluster that is up.

All runs are prepared in their folders on the cluster and then submitted. Each one's job depends on the one
before it, so nobody needs to watch. Nothing is noted here: if this program ends for any reason, the next
`./cluster run` asks the cluster what is under way (`node.sweep`), submits what is left, collects the results
that came meanwhile, and submits nothing twice.
"""
