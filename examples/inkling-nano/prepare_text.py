#!/usr/bin/env python3
"""Write the text that inkling-nano is trained on and judged by: OUT/train.txt and OUT/heldout.txt.

Everything comes from Debian packages and is in the public domain (its copyright has expired):

    bible-kjv            the King James Bible (1611/1769), printed by `bible -f`
    r-cran-janeaustenr   the six novels of Jane Austen (1811-1818)
    r-cran-tokenizers    Moby Dick by Herman Melville (1851)

    apt-get install --no-install-recommends bible-kjv r-cran-janeaustenr r-cran-tokenizers
    ./prepare_text.py out

The result is plain ASCII: one paragraph a line, a blank line between paragraphs, two between works. Verse numbers,
editors' notes and emphasis marks are taken out. A few whole books and chapters (HELD_OUT_*) never reach train.txt.
"""

import argparse
import pathlib
import re
import subprocess
import unicodedata

KJV_BOOKS = """Genesis;Exodus;Leviticus;Numbers;Deuteronomy;Joshua;Judges;Ruth;1 Samuel;2 Samuel;1 Kings;2 Kings;
1 Chronicles;2 Chronicles;Ezra;Nehemiah;Esther;Job;Psalms;Proverbs;Ecclesiastes;Song of Solomon;Isaiah;Jeremiah;
Lamentations;Ezekiel;Daniel;Hosea;Joel;Amos;Obadiah;Jonah;Micah;Nahum;Habakkuk;Zephaniah;Haggai;Zechariah;Malachi;
Matthew;Mark;Luke;John;Acts;Romans;1 Corinthians;2 Corinthians;Galatians;Ephesians;Philippians;Colossians;
1 Thessalonians;2 Thessalonians;1 Timothy;2 Timothy;Titus;Philemon;Hebrews;James;1 Peter;2 Peter;1 John;2 John;
3 John;Jude;Revelation""".replace("\n", "").split(";")

AUSTEN = {
    "sensesensibility": "Sense and Sensibility",
    "prideprejudice": "Pride and Prejudice",
    "mansfieldpark": "Mansfield Park",
    "emma": "Emma",
    "northangerabbey": "Northanger Abbey",
    "persuasion": "Persuasion",
}

HELD_OUT_BOOKS = {"Ruth", "James"}
HELD_OUT_CHAPTERS = {("Persuasion", "Chapter 9"), ("Moby Dick", "CHAPTER 36. The Quarter-Deck.")}

CHAPTER = re.compile(r"(chapter [0-9ivxlc]+\b.*|epilogue)", re.IGNORECASE)


def ascii_text(text: str) -> str:
    text = text.replace("\u00a3", "L").replace("_", "").replace("*", "")
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[^\n -~]", "", text)


def kjv() -> list[tuple[str, str, str]]:
    """(work, part, text) for every book of the Bible; a part is a chapter, its verses joined."""
    printed = subprocess.run(["bible", "-f", "Gen1:1-Rev22:21"], check=True, capture_output=True, text=True).stdout
    parts: list[tuple[str, str, list[str]]] = []
    book_number, previous = -1, None
    for line in printed.splitlines():
        short, chapter, verse = re.fullmatch(r"(\d?[A-Za-z]+)(\d+):\d+ (.*)", line).groups()
        if short != previous:
            book_number, previous = book_number + 1, short
        name = KJV_BOOKS[book_number]
        if not parts or parts[-1][:2] != (name, chapter):
            parts.append((name, chapter, []))
        parts[-1][2].append(verse.strip())
    assert book_number == len(KJV_BOOKS) - 1, f"{book_number + 1} books instead of {len(KJV_BOOKS)}"
    return [(name, chapter, ascii_text(f"{name} {chapter}\n\n" + " ".join(verses))) for name, chapter, verses in parts]


def novel(title: str, lines: str) -> list[tuple[str, str, str]]:
    """(work, part, text) for every chapter of a novel, from its first chapter heading to its last sentence."""
    paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", ascii_text(lines.replace("\r", "")))]
    parts: list[tuple[str, str, list[str]]] = []
    started = False
    for paragraph in filter(None, paragraphs):
        if re.match(r"(the end|finis)\.?$", paragraph, re.IGNORECASE) or "A NOTE ON THE TEXT" in paragraph:
            break
        if re.fullmatch(r"[- ]+|volume [ivx]+|\[.*\]", paragraph, re.IGNORECASE):
            continue
        if CHAPTER.fullmatch(paragraph):
            started = True
            parts.append((title, paragraph, []))
        if started:
            parts[-1][2].append(paragraph)
    return [(work, part, "\n\n".join(text)) for work, part, text in parts]


def r_text(package: str, name: str) -> str:
    script = f'data(list="{name}", package="{package}"); writeLines(get("{name}"), useBytes=TRUE)'
    return subprocess.run(["Rscript", "-e", script], check=True, capture_output=True).stdout.decode("utf-8")


def moby_dick() -> list[tuple[str, str, str]]:
    text = r_text("tokenizers", "mobydick").replace("\r", "")
    body = text[text.index("\nCHAPTER 1. Loomings.") : text.index("\nEnd of")]
    return novel("Moby Dick", body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="folder for train.txt and heldout.txt")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    parts = kjv() + [p for name, title in AUSTEN.items() for p in novel(title, r_text("janeaustenr", name))]
    parts += moby_dick()

    files = {"train.txt": "", "heldout.txt": ""}
    previous = {}
    for work, part, text in parts:
        held_out = work in HELD_OUT_BOOKS or (work, part) in HELD_OUT_CHAPTERS
        name = "heldout.txt" if held_out else "train.txt"
        files[name] += ("\n" if previous.get(name) not in (None, work) else "") + text + "\n\n"
        previous[name] = work
    for name, text in files.items():
        (out / name).write_bytes(text.encode("ascii"))
        print(f"{out / name}: {len(text):,} bytes")


if __name__ == "__main__":
    main()
