"""Parts of a report in Markdown."""

import re


def body_of(text: str, section: str) -> str:
    return text.split(f"\n## {section}\n")[1].partition("\n## ")[0]


def table_rows(text: str, section: str) -> list[list[str]]:
    rows = [line for line in body_of(text, section).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
