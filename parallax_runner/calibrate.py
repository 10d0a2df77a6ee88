"""`python -m parallax_runner.calibrate [Hydra overrides]`: measures the cost model's constants on a cluster."""

from __future__ import annotations

import sys

from parallax_runner.driver.jobs.calibrate import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
