"""The stages of the pipeline: one Prefect task a file."""
