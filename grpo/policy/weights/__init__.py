"""Weights by model address: folders, models on the Hugging Face hub, GGUF files, registered versions, object stores."""
