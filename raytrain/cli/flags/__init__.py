"""The flags of each command. A module here reads a command's arguments and imports neither torch nor Ray.

Each function has the name of its command. It returns the arguments of the function of the same name in `raytrain.cli`,
which runs the command, or None if it printed help.
"""
