"""`python -m commitlog` runs the command `commitlog`, even if that command is not on the path."""

from commitlog.cli import main

if __name__ == "__main__":
    main()
