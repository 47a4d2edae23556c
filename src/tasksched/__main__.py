"""``python -m tasksched``: the command line."""

from tasksched.cli import main

if __name__ == "__main__":
    main(prog_name="tasksched")
