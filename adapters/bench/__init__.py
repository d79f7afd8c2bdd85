"""Measures running servers and the engine: load clients, scenarios, tables and pictures.

Knows servers by their HTTP interface and the engine by its ports; imports no other adapter.
"""
