"""The stages of the pipeline: one Prefect task per file."""
