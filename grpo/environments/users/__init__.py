"""Users of conversations: scripted, simulated by rules, and the model that writes their messages."""
