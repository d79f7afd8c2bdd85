"""The wire: RSGI, routes, and one module for each protocol's types."""
