"""The commands of `grpo`, one a file; each loads what it needs when it is called."""
