"""The parts of the speculative step: rows, cache, sampling, schedule, and the driver of a batch. No models, no text."""
