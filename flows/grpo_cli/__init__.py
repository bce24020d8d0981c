"""The `grpo` command: one module for each group of commands. A command imports what it needs when it is called."""
