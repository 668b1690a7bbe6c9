"""`python -m pykvpool` is `pykvpool`."""

import sys

from pykvpool.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
