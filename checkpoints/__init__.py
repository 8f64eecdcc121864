"""Checkpoint files, others' and ours: reading, conversion's parts, what a converted folder holds."""
