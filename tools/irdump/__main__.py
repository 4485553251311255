"""`python -m tilewright.tools.irdump`: the command `irdump`."""

import sys

from tilewright.tools.irdump.command import main

if __name__ == "__main__":
    sys.exit(main())
