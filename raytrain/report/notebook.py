"""One line of a notebook's output that changes."""

from __future__ import annotations

import html
import importlib
from typing import Any


class Line:
    """A line below what the cell has printed so far; text that is printed later stands below it."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str, share: float | None = None) -> None:
        """Show a text in place of the last one.

        Args:
            share: of the run that is done, from 0 to 1, as a bar before the text; None shows no bar.
        """
        bar = "" if share is None else f'<progress value="{share:.4f}" max="1"></progress> '
        line = f'<pre style="white-space: pre-wrap; margin: 0">{bar}{html.escape(text)}</pre>'
        data = {"text/plain": text, "text/html": line if text else ""}
        if self._handle is None:
            display = importlib.import_module("IPython.display").display  # every notebook has it
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def close(self) -> None:
        """Empty the line."""
        if self._handle is not None:
            self.show("")
        self._handle = None
