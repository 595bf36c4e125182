"""ResNet-50 on ImageNet-shaped images: the training of the AWS Batch stack, and what makes its data."""
