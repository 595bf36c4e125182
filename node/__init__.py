"""Code of the cluster's machines, packed as one archive. It needs only Python 3.11's standard library."""
