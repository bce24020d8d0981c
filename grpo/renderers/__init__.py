"""Renderers: messages ↔ token ids ↔ parsed replies."""
