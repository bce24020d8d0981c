"""The stages of the pipeline: one Prefect task per file. `execution` runs them."""
