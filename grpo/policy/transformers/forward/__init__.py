"""Forward passes over token sequences, flat with shared prefixes or padded."""
