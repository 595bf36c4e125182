"""What a Pulumi program may know of how and where it runs: the engine, its folders, and a cluster's owner."""
