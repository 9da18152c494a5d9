"""The recipe: schema, validation, defaults."""
