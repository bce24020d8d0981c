"""Plans of commands: what they would do, worked out without writing or starting anything."""
