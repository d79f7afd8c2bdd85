"""`python -m mlxbun` is the command mlxbun."""

import sys

from mlxbun.composition_root import main

sys.exit(main())
