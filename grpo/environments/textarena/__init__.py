"""Single-player games of TextArena: environment, generator of scenarios, and players that demonstrate them."""
