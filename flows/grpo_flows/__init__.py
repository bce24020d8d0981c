"""The order of things: one Prefect flow a file, and the `grpo` command."""
