"""From text to tokens and back: tokenizers, streams, prompts, languages, memories, generation settings."""
