"""Run the command line as `python -m raytrain`."""

from raytrain.cli import main

if __name__ == "__main__":
    main()
