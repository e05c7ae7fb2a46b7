"""`python -m sat_slime` is the command `sat-slime`."""

from sat_slime.cli import main

if __name__ == "__main__":
    main()
