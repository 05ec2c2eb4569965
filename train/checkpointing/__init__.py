"""Checkpoints and run folders, on disks and in buckets."""
