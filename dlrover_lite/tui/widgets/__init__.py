"""What shows lines and tables on a terminal: the only modules, with ``screens`` and ``app``, that know textual."""
