"""Published data sets and worlds of tools. No other package imports them: a config names them, and they are loaded."""
