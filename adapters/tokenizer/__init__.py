"""Text to ids and back: tokenizer.json, chat templates, incremental decoding."""
