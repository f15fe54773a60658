"""`python -m commitlog.cli` is the command `commitlog`, also where that is not on the path."""

from commitlog.cli import main

if __name__ == "__main__":
    main()
