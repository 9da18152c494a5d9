"""What a person sees of jobs and decisions in a terminal: data apart from what shows it (docs/tui.md)."""
