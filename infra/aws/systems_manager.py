"""What the agent of Systems Manager needs on a machine, as IAM actions: for sessions, and for commands."""

SESSION = (
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
    "ssm:UpdateInstanceInformation",
)
"""The fewest permissions that Session Manager needs (its user guide). AmazonSSMManagedInstanceCore would let
every machine read every parameter of the account's Parameter Store."""

MESSAGES = (
    "ec2messages:AcknowledgeMessage",
    "ec2messages:DeleteMessage",
    "ec2messages:FailMessage",
    "ec2messages:GetEndpoint",
    "ec2messages:GetMessages",
    "ec2messages:SendReply",
)
"""With these, beside `SESSION`, a machine receives and answers commands of Systems Manager. Image Builder has
no other way to a machine."""

MANAGED = (
    "ssm:DescribeAssociation",
    "ssm:DescribeDocument",
    "ssm:GetDeployablePatchSnapshotForInstance",
    "ssm:GetDocument",
    "ssm:GetManifest",
    "ssm:ListAssociations",
    "ssm:ListInstanceAssociations",
    "ssm:PutComplianceItems",
    "ssm:PutConfigurePackageResult",
    "ssm:PutInventory",
    "ssm:UpdateAssociationStatus",
    "ssm:UpdateInstanceAssociationStatus",
)
"""With `SESSION` and `MESSAGES` these are AmazonSSMManagedInstanceCore, which Image Builder documents for its
machines, except for reading the account's Parameter Store."""
