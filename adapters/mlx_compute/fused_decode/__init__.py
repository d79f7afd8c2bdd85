"""Decode steps of decoders of the common kind in five operations a layer, on CUDA."""
