"""Which of many texts stand inside of another: what was said before, in what is said now.

To look for each of them takes as long as there are texts, for each message of each call: of a rollout with a thousand
conversations, minutes. So a text is looked for where one of its words stands. White space around a word that is neither
a text's first nor its last stands in every copy of that text, so the word is one of the copy's words; its longest such
word is hardly ever in another. What has fewer than three words is looked for everywhere.
"""

from __future__ import annotations


class Quotes:
    """The texts, in the order in which they came."""

    def __init__(self) -> None:
        self._place: dict[str, int] = {}
        # By the word that they are looked for by; and those that have none.
        self._by_word: dict[str, list[str]] = {}
        self._short: list[str] = []

    def __repr__(self) -> str:
        return f"<Quotes of {len(self._place)} texts, {len(self._short)} of them short>"

    def add(self, text: str) -> None:
        """Take in a text; once, however often it comes."""
        if text in self._place:
            return
        self._place[text] = len(self._place)
        words = text.split()[1:-1]
        if words:
            self._by_word.setdefault(max(words, key=len), []).append(text)
        else:
            self._short.append(text)

    def inside(self, other: str) -> tuple[str, ...]:
        """Return the texts that stand inside of another, in the order in which they came."""
        likely = list(self._short)
        if self._by_word:
            for word in self._by_word.keys() & set(other.split()):
                likely += self._by_word[word]
        return tuple(sorted((text for text in likely if text in other), key=self._place.__getitem__))
