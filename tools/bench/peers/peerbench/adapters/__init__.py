"""One module for each peer; it is imported in that peer's interpreter alone."""
