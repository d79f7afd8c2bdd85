"""Models that turn texts into vectors: what a folder says, BERT, mlx-lm's decoders, batches."""
