"""The AWS APIs that a machine needs, with the standard library only: metadata, objects, secrets, signatures.

Environment variables count, as in the AWS SDKs: AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL_EC2,
AWS_ENDPOINT_URL_SECRETS_MANAGER, AWS_EC2_METADATA_SERVICE_ENDPOINT, AWS_CA_BUNDLE, HTTPS_PROXY, NO_PROXY.
"""
