"""mlxbun: an event-sourced server for language models on MLX."""

__version__ = "0.1.0"
