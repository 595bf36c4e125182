// A test of the program with Pulumi's mocks: no engine, no cloud, no cluster.
import * as assert from "node:assert";
import { test } from "node:test";
import * as pulumi from "@pulumi/pulumi";

const made: Record<string, any> = {};
const outputs = (name: string): Record<string, object> => ({
    "aws:s3/bucket:Bucket": { bucket: name },
    "slurm-stacks:index:SlurmCluster": { cluster: { name } },
});
pulumi.runtime.setMocks({
    newResource: args => {
        made[args.name] = args.inputs;
        return { id: `${args.name}-id`, state: { ...args.inputs, ...outputs(args.name)[args.type] } };
    },
    call: () => ({}),
});

test("clusters are in our network", async () => {
    const { names } = await import("./index");
    const found = await new Promise(resolve => pulumi.all(names).apply(resolve));
    assert.deepStrictEqual(found, ["train", "small"]);
    assert.strictEqual(made.train.network.aws.vpc, "vpc-id");
});
