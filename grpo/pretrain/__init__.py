"""Base models: a tokenizer and weights trained on demonstrations."""
