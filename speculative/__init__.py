"""What the speculative step is made of: cache, sampling, drafters, schedules. No model, no text, no files."""
