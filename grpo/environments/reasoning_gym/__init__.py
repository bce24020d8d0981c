"""Questions of reasoning-gym: environment, and generator of scenarios and demonstrations."""
