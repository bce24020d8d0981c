"""Code identity: digests of sources, packages, user code and file reads, for cache keys and provenance."""
