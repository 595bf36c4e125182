"""What a machine on AWS asks of AWS, with the standard library only: its own facts, objects, secrets.

Endpoints are overridden as in the AWS SDKs, by the environment: AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_S3,
AWS_ENDPOINT_URL_SECRETS_MANAGER, AWS_EC2_METADATA_SERVICE_ENDPOINT.
"""
