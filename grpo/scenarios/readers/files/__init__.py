"""Files as rows and records: their encodings, formats and sizes."""
