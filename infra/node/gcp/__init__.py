"""What a machine on Google Cloud asks of it, with the standard library only: its own facts, objects, secrets.

Endpoints are overridden by the environment, as in Google's own clients: GCE_METADATA_HOST (host:port),
STORAGE_EMULATOR_HOST and CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER (addresses).
"""
