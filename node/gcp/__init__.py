"""The Google Cloud APIs that a machine needs, with the standard library only: metadata, objects, secrets.

Environment variables override the endpoints, as in Google's clients: GCE_METADATA_HOST (host:port),
STORAGE_EMULATOR_HOST and CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER (URLs).
"""
