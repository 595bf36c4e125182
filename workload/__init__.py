"""The benchmark that runs inside a cluster's jobs: the published Keras training, and its result record.

It is staged by copying the folder and runs in the training environment
(`envs/cpu` or `envs/gpu`), so it imports nothing of `infra`, and nothing here imports TensorFlow before
`workload.train` has set the environment that TensorFlow reads when it is imported.
"""
