"""What stands between text and tokens: tokenizers, streams, prompts, languages, generation settings."""
