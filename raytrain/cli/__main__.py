"""Run the command line as `python -m raytrain.cli`."""

from raytrain.cli import main

if __name__ == "__main__":
    main()
