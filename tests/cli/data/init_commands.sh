# The command that writes each shipped stack file. tests/cli/test_init.py compares.

./cluster init --stack local --provider local \
    --partition debug=local.small,nodes=0-10,default=true \
    --partition gpu=local.medium,accelerator=v100:1,nodes=0-4 \
    --benchmark 2,partition=debug,epochs=2,profile=local-sgd,data=auto

./cluster init --stack local-machines --provider local --login 1 \
    --partition debug=local.small,nodes=0-4,default=true \
    --benchmark 2,partition=debug,epochs=2,profile=local-sgd,data=auto \
    --set cluster.name=local-m --set cluster.local.isolation=container

./cluster init --stack aws-cpu --provider aws --region eu-central-1 \
    --access ssh --ssh-cidr 203.0.113.0/24 --key slurm-key --controller m4.large \
    --partition compute=m4.large,nodes=0-10 --partition c4=c4.2xlarge,nodes=0-10 \
    --benchmark 2,partition=compute,profile=published

./cluster init --stack aws-gpu --provider aws --region eu-west-1 --access ssm \
    --controller m5.xlarge,disk_gib=200 --login 0 \
    --partition compute=p3dn.24xlarge,accelerator=v100:8,nodes=0-8,placement=cluster,time_limit=24:00:00,exclusive=true,aws.efa=true \
    --partition t4=g4dn.xlarge,nodes=0-20 \
    --storage home=nfs,size_gib=200 --storage apps=nfs,size_gib=200 \
    --storage scratch=fsx_lustre,path=/fsx,size_gib=1200,deployment=SCRATCH_2 \
    --benchmark 2,script=keras-mnist,partition=compute,gpus_per_node=1,epochs=8,profile=published,data=auto

./cluster init --stack aws-p4de --provider aws --region us-east-1 \
    --access ssh --ssh-cidr 203.0.113.0/24 --key PLACEHOLDER_SSH_KEY --controller m5.8xlarge,disk_gib=200 \
    --partition compute-gpu=p4de.24xlarge,nodes=4-4,reservation=PLACEHOLDER_CAPACITY_RESERVATION_ID,placement=none,exclusive=true,disk_gib=200,aws.efa=true \
    --storage home=nfs --storage apps=nfs,size_gib=200 --storage local_scratch=nvme,path=/local_scratch \
    --storage scratch=fsx_lustre,path=/fsx,size_gib=4800,deployment=PERSISTENT_2,throughput=250 \
    --set cluster.image.id=PLACEHOLDER_CUSTOM_AMI_ID \
    --set cluster.network.aws.vpc=PLACEHOLDER_VPC \
    --set cluster.network.aws.public_subnet=PLACEHOLDER_PUBLIC_SUBNET \
    --set cluster.network.aws.private_subnets=[PLACEHOLDER_PRIVATE_SUBNET] \
    --set benchmark.enabled=false

./cluster init --stack aws-p4de-inference --provider aws --region us-east-1 \
    --access ssh --ssh-cidr 203.0.113.0/24 --key PLACEHOLDER_SSH_KEY --controller m5.8xlarge,disk_gib=200 \
    --partition compute-gpu=p4de.24xlarge,nodes=4-4,reservation=PLACEHOLDER_CAPACITY_RESERVATION_ID,placement=none,exclusive=true,disk_gib=200,aws.efa=true \
    --partition inference-gpu=g5.12xlarge,nodes=0-10,disk_gib=200 \
    --storage home=nfs --storage apps=nfs,size_gib=200 --storage local_scratch=nvme,path=/local_scratch \
    --storage scratch=fsx_lustre,path=/fsx,size_gib=4800,deployment=PERSISTENT_2,throughput=250 \
    --set cluster.image.id=PLACEHOLDER_CUSTOM_AMI_ID \
    --set 'cluster.network.aws={vpc: PLACEHOLDER_VPC, public_subnet: PLACEHOLDER_PUBLIC_SUBNET, private_subnets: [PLACEHOLDER_PRIVATE_SUBNET]}' \
    --set benchmark.enabled=false

./cluster init --stack aws-trn1 --provider aws --region us-east-1 \
    --access ssh --ssh-cidr 203.0.113.0/24 --key PLACEHOLDER_SSH_KEY --controller m5.8xlarge,disk_gib=200 \
    --partition compute-gpu=trn1.32xlarge,nodes=4-4,placement=cluster,exclusive=true,disk_gib=200,aws.efa=true \
    --storage home=nfs --storage apps=nfs,size_gib=200 --storage local_scratch=nvme,path=/local_scratch \
    --storage scratch=fsx_lustre,path=/fsx,size_gib=4800,deployment=PERSISTENT_2,throughput=250 \
    --set cluster.image.id=PLACEHOLDER_CUSTOM_AMI_ID \
    --set 'cluster.network.aws={vpc: PLACEHOLDER_VPC, public_subnet: PLACEHOLDER_PUBLIC_SUBNET, private_subnets: [PLACEHOLDER_PRIVATE_SUBNET]}' \
    --set benchmark.enabled=false

./cluster init --stack aws-p4de-containers --provider aws --region us-east-1 \
    --access ssm --controller m5.8xlarge,disk_gib=200 \
    --partition compute-gpu=p4de.24xlarge,nodes=4-4,placement=cluster,exclusive=true,disk_gib=200,aws.efa=true \
    --storage home=nfs --storage apps=nfs,size_gib=200 --storage local_scratch=nvme,path=/local_scratch \
    --storage scratch=fsx_lustre,path=/fsx,size_gib=4800,deployment=PERSISTENT_2,throughput=250 \
    --set 'cluster.hooks=[{role: all, source: examples/hooks/docker.sh}]' \
    --set cluster.containers.runtime=pyxis --set cluster.containers.images=/fsx/enroot \
    --set 'cluster.containers.packages=[
        {source: https://github.com/NVIDIA/enroot/releases/download/v4.1.2/enroot_4.1.2-1_amd64.deb,
         sha256: PLACEHOLDER_ENROOT_SHA256},
        {source: https://github.com/NVIDIA/enroot/releases/download/v4.1.2/enroot+caps_4.1.2-1_amd64.deb,
         sha256: PLACEHOLDER_ENROOT_CAPS_SHA256},
        {source: PLACEHOLDER_PYXIS_PACKAGE, sha256: PLACEHOLDER_PYXIS_SHA256}]' \
    --set benchmark.enabled=false

./cluster init --stack aws-batch --provider aws --region us-east-1 \
    --storage scratch=fsx_lustre,path=/fsx,size_gib=3600,deployment=SCRATCH_1,s3_import=PLACEHOLDER_S3_IMPORT,s3_export=PLACEHOLDER_S3_EXPORT \
    --set cluster.scheduler=batch --set cluster.image.bake=true \
    --set cluster.batch.nodes=20 --set cluster.batch.instance_types=[p3dn.24xlarge] \
    --set 'cluster.batch.vcpus={min: 0, desired: 0, max: 4096}' \
    --set cluster.batch.compute_environment=tensorflow-gpu-fsx-ce --set cluster.batch.queue=tf-queue \
    --set cluster.batch.job_definition=mnptensorflow-gpu-mnp1 --set cluster.batch.placement_group=tf-group \
    --set cluster.batch.disk_gib=500 --set cluster.batch.attempts=1 \
    --set cluster.batch.tags.Name=tensorflow-gpu-fsx-processor \
    --set cluster.batch.container.repository=mnp-tensorflow --set cluster.batch.container.cached=true \
    --set cluster.batch.container.vcpus=62 --set cluster.batch.container.memory_mib=424000 \
    --set 'cluster.batch.container.environment={SCRATCH_DIR: /scratch, JOB_DIR: /fsx/resized, BATCH_SIZE: 256, MPI_GPUS: 160}' \
    --set 'cluster.batch.container.environment.EXTRA_MPI_PARAMS=-x HOROVOD_HIERARCHICAL_ALLREDUCE=1 -x HOROVOD_FUSION_THRESHOLD=16777216 -x NCCL_MIN_NRINGS=8 -x NCCL_LAUNCH_MODE=PARALLEL' \
    --set 'cluster.batch.container.volumes=[{source: /scratch}, {source: /fsx}]'

./cluster init --stack gcp-cpu --provider gcp --zone europe-west4-a --project my-project \
    --access iap --controller n1-standard-2 --login 1,instance_type=n1-standard-2 \
    --partition debug=n1-standard-2,nodes=0-10 \
    --benchmark 4,partition=debug,profile=published --set cluster.name=slurm10

./cluster init --stack gcp-gpu --provider gcp --zone europe-west4-a --project my-project \
    --access iap --controller n1-standard-2 --login 1,instance_type=n1-standard-2 \
    --partition debug=n1-standard-2,accelerator=nvidia-tesla-v100:1,nodes=0-8 \
    --benchmark 8,partition=debug,profile=published --set cluster.name=slurm8
