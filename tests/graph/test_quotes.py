"""Which texts stand inside of another: as if each were looked for."""

from hypothesis import given
from hypothesis import strategies as st

from graph.quotes import Quotes

pieces = st.lists(st.sampled_from(["a", "b", "ab", "aab", "é", " ", "\n", "\u3000", "\x1c", "。"]), max_size=12).map(
    "".join
)


@given(st.lists(pieces.filter(bool), max_size=8), st.lists(pieces, max_size=3), st.data())
def test_all_are_found_and_no_others(texts: list[str], more: list[str], data: st.DataObject) -> None:
    quotes = Quotes()
    for text in texts:
        quotes.add(text)
    around = data.draw(st.lists(st.sampled_from([*texts, *more, "a", " "]), max_size=4))
    other = "".join(around)
    assert quotes.inside(other) == tuple(text for text in dict.fromkeys(texts) if text in other)


def test_a_text_may_be_part_of_a_word() -> None:
    quotes = Quotes()
    for text in ("done", "all is done", "a b c"):
        quotes.add(text)
    assert quotes.inside("xall is donex") == ("done", "all is done")
    assert quotes.inside("xa b cx") == ("a b c",)
    assert quotes.inside("a b") == ()
    assert repr(quotes) == "<Quotes of 3 texts, 1 of them short>"


def test_only_texts_with_a_word_in_common_are_looked_for() -> None:
    """Or a rollout with a thousand conversations would take minutes."""
    looked = 0

    class Text(str):
        def __contains__(self, other: object) -> bool:
            nonlocal looked
            looked += 1
            return super().__contains__(other)  # type: ignore[operator]

    quotes = Quotes()
    for n in range(1000):
        quotes.add(f"the result number{n} is here")
    assert quotes.inside(Text("so: the result number7 is here, the result is")) == ("the result number7 is here",)
    assert looked == 1
