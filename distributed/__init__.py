"""Running one model in several processes."""
