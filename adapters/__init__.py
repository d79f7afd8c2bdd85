"""Everything that touches the world.  One adapter never imports another."""
