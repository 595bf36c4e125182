// One cluster, whose package `pulumi package add` writes into sdks/.
package main

import (
	"example.com/pulumi-slurm-stacks/sdk/go/slurmstacks"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		cluster, err := slurmstacks.NewSlurmCluster(ctx, "train", &slurmstacks.SlurmClusterArgs{
			Provider: pulumi.String("aws"),
			Network:  &slurmstacks.NetworkConfigArgs{Zones: pulumi.StringArray{pulumi.String("eu-west-1b")}},
			Partitions: slurmstacks.PartitionConfigArray{
				&slurmstacks.PartitionConfigArgs{Name: pulumi.String("cpu"), InstanceType: pulumi.String("m5.xlarge")},
			},
		})
		if err != nil {
			return err
		}
		ctx.Export("name", cluster.Cluster.Name())
		return nil
	})
}
