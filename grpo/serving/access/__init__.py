"""Who may call the server, and how much work a caller may cause."""
