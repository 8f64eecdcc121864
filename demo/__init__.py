"""The embedded pair: its tasks, its training, and the same in the sizes of real models."""
