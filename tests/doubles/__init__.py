"""In-memory doubles of the ports, real enough to pass the ports' contracts."""
