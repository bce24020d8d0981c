"""What episodes start from: reading, checking, splitting."""
