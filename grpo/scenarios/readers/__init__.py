"""From sources to records: one file a format."""
