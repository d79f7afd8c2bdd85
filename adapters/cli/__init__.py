"""The command line: `mlxbun` and its alias `mlx-bun`."""
