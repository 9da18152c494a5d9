"""The config database: what is known of all jobs, past and present, in one SQLite file that several processes use at once."""
