"""Speech to text with Whisper: sound, features, rules of decoding, transcripts and their files."""
