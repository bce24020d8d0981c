"""What the user's code depends on besides its settings: its modules, and the files and variables that it reads."""
