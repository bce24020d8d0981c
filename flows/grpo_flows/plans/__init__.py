"""Plans of commands: what they would do, found out without writing or starting anything."""
