// Two clusters in a network of their own, with a bucket that both mount.
import * as pulumi from "@pulumi/pulumi";
import * as aws from "@pulumi/aws";
import { SlurmCluster } from "@pulumi/slurm-stacks";

const vpc = new aws.ec2.Vpc("vpc", { cidrBlock: "10.0.0.0/16" });
const subnet = (name: string, cidrBlock: string) =>
    new aws.ec2.Subnet(name, { vpcId: vpc.id, cidrBlock, availabilityZone: "eu-west-1b" });
const [open, nodes] = [subnet("public", "10.0.0.0/20"), subnet("nodes", "10.0.128.0/20")];
const data = new aws.s3.Bucket("data");
export const names = ["train", "small"].map(name => new SlurmCluster(name, {
    provider: "aws",
    network: {
        zones: ["eu-west-1b"],
        aws: { vpc: vpc.id, publicSubnet: open.id, privateSubnets: [nodes.id] },
    },
    partitions: [{ name: "cpu", instanceType: "m5.xlarge", nodes: { max: 4 } }],
    storage: { buckets: [{ bucket: pulumi.interpolate`s3://${data.bucket}/sets`, path: "/data" }] },
}).cluster.name);
