"""A cluster as a component of anybody's Pulumi program: the package, its schema and its plugin."""
