"""Runs the command line: `python -m mlxbun.composition_root`."""

import sys

from mlxbun.composition_root import main

sys.exit(main())
