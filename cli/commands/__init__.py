"""The commands: a module or a folder for each."""
