"""The embedded pairs of models."""
