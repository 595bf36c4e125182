"""Tools of everything that runs on a machine: files, processes, locks, waiting, HTTP."""
