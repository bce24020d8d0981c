"""Whether a candidate is better, and a report that shows it."""
