"""The AWS APIs that a machine needs, with the standard library only: its metadata, objects, and secrets.

Environment variables override the endpoints, as in the AWS SDKs: AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_S3,
AWS_ENDPOINT_URL_SECRETS_MANAGER, AWS_EC2_METADATA_SERVICE_ENDPOINT.
"""
