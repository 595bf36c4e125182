"""The local cloud: an agent with an API, and the machines that it makes. Standard library only."""
