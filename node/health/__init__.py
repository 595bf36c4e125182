"""The health of nodes with GPUs, Neuron devices or EFA: its checks, and the programs that run them."""
