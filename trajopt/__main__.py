"""The command line, as `python -m trajopt`."""

import sys

from trajopt.cli import main

if __name__ == "__main__":
    sys.exit(main())
