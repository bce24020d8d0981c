"""The search for settings: trials from the same weights, judged on held-out scenarios, kept in one study."""
