"""The only room that knows MLX: loading, row states, the step, the sampling graph."""
