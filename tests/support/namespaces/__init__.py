"""EC2 instances of one test, as sets of namespaces: no systemd, no image, this host's own files."""
