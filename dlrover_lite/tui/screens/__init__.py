"""The screens: each puts a page's lines and tables in place, and has its keys."""
