"""`python -m orchestrator` is `winnow`, for `ray job submit`."""

from orchestrator.cli import main

if __name__ == "__main__":
    main()
