"""`python -m trw_pipeline`."""

from trw_pipeline.cli import main

if __name__ == "__main__":
    main()
