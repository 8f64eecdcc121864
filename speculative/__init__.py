"""The parts of the speculative step: cache, sampling, drafters, schedules. No models, no text, no files."""
