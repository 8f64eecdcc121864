"""Architectures behind one contract, and the one place that knows which config.json is whose."""
