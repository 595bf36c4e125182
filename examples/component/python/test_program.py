"""A test of the program with Pulumi's mocks: no engine, no cloud, no cluster."""

import runpy
import unittest

import pulumi


class Cloud(pulumi.runtime.Mocks):
    def __init__(self):
        self.made = {}

    def new_resource(self, args):
        self.made[args.name] = args.inputs
        outputs = {
            "aws:s3/bucket:Bucket": {"bucket": args.name},
            "slurm-stacks:index:SlurmCluster": {"cluster": {"name": args.name}},
        }
        return f"{args.name}-id", {**args.inputs, **outputs.get(args.typ, {})}

    def call(self, args):
        return {}


class ClustersTest(unittest.TestCase):
    def test_clusters_are_in_our_network(self):
        cloud = Cloud()
        pulumi.runtime.set_mocks(cloud)

        @pulumi.runtime.test
        def program():
            runpy.run_path("__main__.py")

        program()
        for name, most in {"train": 4, "small": 2}.items():
            self.assertEqual(cloud.made[name]["network"]["aws"]["vpc"], "vpc-id")
            self.assertEqual(cloud.made[name]["partitions"][0]["nodes"]["max"], most)
