"""Check the links of Markdown pages: each names a file that exists, and a heading of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


def broken(pages: Iterable[Path]) -> list[str]:
    """Return a line for each relative link of the pages whose file or heading does not exist."""
    found = []
    for page in pages:
        for target in links(page.read_text()):
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page.resolve()
            if not file.exists():
                found.append(f"{page}: {target}: no such file")
            elif anchor and anchor not in headings(file.read_text()):
                found.append(f"{page}: {target}: no such heading")
    return found


def links(text: str) -> list[str]:
    """Return the targets of a page's links and pictures that are not URLs."""
    targets = re.findall(r"\]\(([^()\s]+)\)", prose(text)) + re.findall(r'(?:src|href)="([^"]+)"', prose(text))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def headings(text: str) -> set[str]:
    """Return the anchors of a page's headings, which are the same at GitHub and in the site."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    words = [re.sub(r"[^\w\s-]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title)).strip().lower() for title in titles]
    return {re.sub(r"\s", "-", title) for title in words}


def prose(text: str) -> str:
    """Return a page without its code."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?:^|(?<=\n\n))(?:    .*\n|\n)+", "\n", text)
    return re.sub(r"`[^`\n]*`", "", text)
