"""Grammars: xgrammar, reached without torch."""
