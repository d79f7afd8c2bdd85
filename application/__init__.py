"""The use cases: the order in which ports are called.  No rules, no technology."""
