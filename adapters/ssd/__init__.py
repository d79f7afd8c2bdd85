"""Where blocks are kept on a disk: SQLite manifests and content-addressed files."""
