"""`python -m orchestrator` is `winnow`."""

from raywinnow import main

if __name__ == "__main__":
    main()
