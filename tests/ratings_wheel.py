"""A file in the layout of RecBole's wheel, with a few ratings that follow a rule."""

from __future__ import annotations

import zipfile
from pathlib import Path

from benchmarks.results.ratings import FOLDER

USERS, ITEMS = 6, 10
RATINGS = USERS * ITEMS

INTER = "user_id:token\titem_id:token\trating:float\ttimestamp:float"
USER = "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token"
ITEM = "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq"


def write_wheel(path: Path) -> Path:
    """Writes the file, and returns its path."""
    users = [f"{user}\t{20 + user}\t{'MF'[user % 2]}\twriter\t55105" for user in range(1, USERS + 1)]
    items = [f'{item}\tNo "{item}"\t1996\t{"Drama War" if item % 2 else "Comedy"}' for item in range(1, ITEMS + 1)]
    rows = [
        f"{user}\t{item}\t{1 + (user + item - 1) % 5}\t881250949"
        for user in range(1, USERS + 1)
        for item in range(1, ITEMS + 1)
    ]
    with zipfile.ZipFile(path, "w") as archive:
        for part, lines in (("inter", [INTER, *rows]), ("user", [USER, *users]), ("item", [ITEM, *items])):
            archive.writestr(f"{FOLDER}/ml-100k.{part}", "\n".join(lines) + "\n")
    return path
