"""The `grpo` command: one module for each group of commands; each command imports what it needs when it is called."""
