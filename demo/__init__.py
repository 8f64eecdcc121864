"""The embedded pairs of models: loading them, widening them to real sizes, examples of their tasks."""
