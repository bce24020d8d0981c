"""The worlds that agents act in."""
