"""The container of an AWS Batch multi-node parallel job: its image and its entry point.

The entry point needs the standard library only.
"""
