"""How nodes of this machine are kept within their limits: by control groups where they may be used, else by a watchdog."""
