"""Drafters: they propose tokens for the target to verify."""
