"""Checkpoint files: reading other projects', downloading, converting, and writing ours."""
