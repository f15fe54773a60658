"""`python -m commitlog.cli` is the command `commitlog`, where the script itself is not on the path."""

from commitlog.cli import main

main()
