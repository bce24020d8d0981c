"""hacking."""
