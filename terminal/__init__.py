"""Shared by the commands: flags, messages, prompt files, colours, statistics."""
